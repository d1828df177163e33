"""Show progress on stderr: as a bar on a terminal or in a notebook, otherwise as a line every 30 s."""

from __future__ import annotations

import io
import os
import sys
import time
from contextlib import suppress
from typing import Any, Self

from tqdm import tqdm
from typing_extensions import override

from dbloader._describe import printable

EVERY_S = 30.0
"""Seconds between two lines if stderr is not a terminal, for example in the log of a batch job."""


class _Lines(tqdm):  # type: ignore[misc] # tqdm has no types
    """Prints lines without a bar. A command that takes less than ``EVERY_S`` seconds prints nothing."""

    monitor_interval = 0  # no monitor thread, because a process with threads is hard to fork

    @override
    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if time.time() - self.start_t >= EVERY_S and sys.stderr is not None:
            with suppress(OSError, ValueError):  # a closed log must not end the conversion
                sys.stderr.write(f"{printable(str(self))}\n")


class Meter:
    """Shows progress until the ``with`` block ends."""

    def __init__(self, title: str, unit: str, *, quiet: bool = False) -> None:
        options: dict[str, Any] = {"desc": title, "unit": f" {unit}", "disable": quiet, "miniters": 1}
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        # A dumb terminal, such as the shell in Emacs, cannot draw a bar.
        if (is_terminal and os.environ.get("TERM") != "dumb") or "ipykernel" in sys.modules:
            from tqdm.auto import tqdm as auto  # a widget in a notebook with ipywidgets; slow to import

            kind = type("Bar", (auto,), {"monitor_interval": 0})
            self._bar = kind(dynamic_ncols=True, **options)
        else:  # ncols=0 leaves out the bar
            options |= {"mininterval": EVERY_S, "delay": EVERY_S, "ncols": 0, "smoothing": 0}
            self._bar = _Lines(file=io.StringIO(), **options)

    def update(self, done: int, total: int | None, *, title: str | None = None, nbytes: int | None = None) -> None:
        """Show ``done`` of ``total`` (None while unknown), and the rate at which ``nbytes`` were read.

        The first call with a total restarts the clock. The rate excludes its ``done``: the work of an earlier run.
        """
        bar = self._bar
        if title is not None:
            bar.set_description(title, refresh=False)
        if total is not None and bar.total is None:
            bar.reset(total)
            bar.initial = bar.n = done
        elif total is not None:
            bar.total = total  # another step, such as reading a second store, may have another total
        seconds = bar.format_dict["elapsed"]
        if nbytes is not None and seconds:
            bar.set_postfix_str(f"{nbytes / seconds / 1e6:.1f} MB/s", refresh=False)
        bar.update(done - bar.n)

    def clear(self) -> None:
        """Remove the bar from the terminal, until the next update."""
        self._bar.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
