"""Show progress on stderr, as a bar on a terminal, otherwise as a line every 30 s."""

from __future__ import annotations

import os
import sys
import time
from typing import Self

from tqdm import tqdm

from dbloader.cli.text import say

EVERY_S = 30.0
"""Seconds between two lines if stderr is not a terminal, for example in the log of a batch job."""


class Meter:
    """Shows progress until the ``with`` block ends.

    Without a terminal, a command that takes less than ``EVERY_S`` seconds prints nothing.
    """

    def __init__(self, title: str, unit: str, *, quiet: bool = False) -> None:
        self._title = title
        self._unit = f" {unit}"
        self._quiet = quiet
        self._began = time.monotonic()
        self._next = self._began + EVERY_S
        self._printed = False
        self._line = ""
        self._first: int | None = None
        self._bar: tqdm | None = None
        # A dumb terminal, such as the shell in Emacs, cannot draw a bar.
        if not quiet and sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._bar = tqdm(desc=title, dynamic_ncols=True, unit=self._unit)

    def update(self, done: int, total: int | None, *, title: str | None = None, nbytes: int | None = None) -> None:
        """Show ``done`` of ``total`` (None while unknown), and the rate at which ``nbytes`` were read.

        The first call with a total restarts the clock. The ``done`` of this call is work of an earlier run, so the rate
        excludes it.
        """
        if self._quiet:
            return
        now = time.monotonic()
        if title is not None:
            self._title = title
            if self._bar is not None:
                self._bar.set_description(title, refresh=False)
        if total is not None and self._first is None:
            self._first, self._began = done, now
            if self._bar is not None:
                self._bar.reset(total=total)
                self._bar.initial = self._bar.n = done
        seconds = now - self._began
        rate = f"{nbytes / seconds / 1e6:.1f} MB/s" if nbytes is not None and seconds else ""
        if self._bar is not None:
            self._bar.set_postfix_str(rate, refresh=False)
            self._bar.update(done - self._bar.n)
            return
        # With ncols=0, tqdm returns a line without a bar.
        self._line = tqdm.format_meter(
            done, total, seconds, ncols=0, prefix=self._title, postfix=rate, initial=self._first or 0, unit=self._unit
        )
        if now >= self._next:
            self._next, self._printed = now + EVERY_S, True
            say(self._line, err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._printed and kind is None:  # after an error, the error message should be the last line
            say(self._line, err=True)
