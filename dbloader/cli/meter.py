"""How far a command has come, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from tqdm import tqdm
from typing_extensions import override

from dbloader.cli.text import say, size

if TYPE_CHECKING:
    from typing_extensions import Self

# Seconds between two lines where there is no terminal, as in the log of a batch job.
EVERY_S = 30.0

# Layouts for a terminal that is too narrow for tqdm's own, which would be cut in the middle of a number.
_NARROW = (
    "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} [{remaining}, {rate_fmt}]",
    "{percentage:3.0f}% {n_fmt}/{total_fmt} [{remaining}, {rate_fmt}]",
    "{percentage:3.0f}% {n_fmt}/{total_fmt} [{remaining}]",
    "{percentage:3.0f}% [{remaining}]",
    "{percentage:3.0f}%",
)
_NARROW_WITHOUT_TOTAL = ("{desc}: {n_fmt}{unit}", "{n_fmt}")


class Meter:
    """Shows how far a command has come; ``with`` ends it.

    Without a terminal it prints a line every 30 s, and one at the end where there was one before: what is done sooner
    has its report on stdout.

    Args:
        title: What is being done.
        unit: What is counted, such as "records"; "bytes" are shown as MB and so on.
        quiet: Show nothing.
    """

    def __init__(self, title: str, unit: str, *, quiet: bool = False) -> None:
        self._unit = unit
        self._bar: _Bar | None = None
        self._lines: _Lines | None = None
        if not quiet and sys.stderr is not None and sys.stderr.isatty():
            bytes_unit = unit == "bytes"
            self._bar = _Bar(
                desc=title, unit="B" if bytes_unit else f" {unit}", unit_scale=bytes_unit, dynamic_ncols=True
            )
        elif not quiet:
            self._lines = _Lines(title, unit)

    def update(self, done: int, total: int | None, *, title: str | None = None, nbytes: int | None = None) -> None:
        """Show how far it has come.

        Args:
            done: How much is done. What is done at the first call with a total counts as done before.
            total: How much there is; None while that is not known.
            title: What is being done from now on, where that changes.
            nbytes: Bytes read so far, if their rate is to be shown too.
        """
        if self._bar is not None:
            self._bar.show(done, total, title, nbytes)
        elif self._lines is not None:
            self._lines.show(done, total, title, nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._lines is not None and kind is None:  # else an error is the last line
            self._lines.end()


class _Bar(tqdm):  # type: ignore[misc] # tqdm ships no types
    """tqdm's bar, in a layout that fits the terminal."""

    def show(self, done: int, total: int | None, title: str | None, nbytes: int | None) -> None:
        if total is not None and self.total is None:
            # The clock starts again here: the scan, and the files of an earlier run, do not count.
            self.reset(total=total)
            self.initial = self.n = done
        if title is not None and f"{title}: " != self.desc:
            self.set_description(title, refresh=False)
        elapsed = self.format_dict["elapsed"]
        if nbytes is not None and elapsed:
            self.set_postfix_str(f"{nbytes / elapsed / 1e6:.1f} MB/s", refresh=False)
        self.update(done - self.n)

    @override
    def __str__(self) -> str:
        facts = self.format_dict
        columns = facts.pop("ncols") or 80
        if len(self.format_meter(**facts)) <= columns:  # with a bar of 10 letters
            return str(super().__str__())
        text = ""
        for layout in _NARROW_WITHOUT_TOTAL if self.total is None else _NARROW:
            text = str(self.format_meter(**facts | {"bar_format": layout}))
            if len(text) <= columns:
                return text
        return text[:columns]


class _Lines:
    """A line every ``EVERY_S`` seconds."""

    def __init__(self, title: str, unit: str) -> None:
        self._title = title
        self._unit = unit
        self._began = time.monotonic()
        self._next = self._began + EVERY_S
        self._told = False
        self._first: int | None = None  # done before, once the total is known
        self._now: tuple[int, int | None, int | None] = (0, None, None)

    def show(self, done: int, total: int | None, title: str | None, nbytes: int | None) -> None:
        self._title = title or self._title
        if total is not None and self._first is None:
            self._first, self._began = done, time.monotonic()
        self._now = done, total, nbytes
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY_S
            self._told = True
            self._say(ended=False)

    def end(self) -> None:
        if self._told:
            self._say(ended=True)

    def _say(self, *, ended: bool) -> None:
        done, total, nbytes = self._now
        parts = [f"{self._title}: {self._amount(done)}" if total is None else self._of(done, total)]
        seconds = time.monotonic() - self._began
        rate = (done - (self._first or 0)) / seconds if seconds else 0.0
        if rate:
            parts.append(f"{self._amount(rate)}/s")
        if nbytes is not None and seconds:
            parts.append(f"{nbytes / seconds / 1e6:.1f} MB/s")
        if ended:
            parts.append(f"in {tqdm.format_interval(seconds)}")
        elif total is not None and rate:
            parts.append(f"{tqdm.format_interval((total - done) / rate)} left")
        say(", ".join(parts), err=True)

    def _of(self, done: int, total: int) -> str:
        share = done / total if total else 1.0
        number = size(done) if self._unit == "bytes" else f"{done:,}"
        return f"{self._title}: {number} of {self._amount(total)} ({int(100 * share)} %)"

    def _amount(self, number: float) -> str:
        return size(number) if self._unit == "bytes" else f"{number:,.0f} {self._unit}"
