"""Count the findings of a check, keep the first findings, and write all findings to a file."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable


_KEPT = 1000


class Findings:
    """Collects findings about records in a ``with`` block, and writes them to a file.

    The file appears at the end of the block, unless the block raises an error.

    Args:
        output: Path of a new file for all findings, as JSON lines; None for no file.
        found: Called with each of the first thousand findings.

    Attributes:
        counts: Number of findings of each kind.
        first: The first thousand findings. Each has the keyword arguments of `add`, and ``difference``, a text with its
            kinds.
    """

    def __init__(
        self, output: str | os.PathLike[str] | None, found: Callable[[dict[str, Any]], object] = lambda row: None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.first: list[dict[str, Any]] = []
        self._found = found
        self._path = None if output is None else Path(output)
        # The name contains the process id, because OUTPUT.partial may be an unfinished store.
        self._aside = Path(f"{output}.{os.getpid()}.partial")

    def add(self, *kinds: str, listed: bool = True, **row: Any) -> None:
        """Add a finding of one or more kinds. Do not write it to the file if ``listed`` is false."""
        self.counts.update(kinds)
        row["difference"] = ", ".join(kinds)
        if len(self.first) < _KEPT:
            self.first.append(row)
            self._found(row)
        if self._path is not None and listed:
            self._file.write(json.dumps(row) + "\n")

    def __enter__(self) -> Self:
        if self._path is not None:
            if os.path.lexists(self._path):  # for example the store, given by mistake
                raise OptionError(f"output (--output) must be a new file, but {self._path} exists: choose another name")
            if not self._aside.parent.is_dir():
                raise OptionError(f"--output {self._path}: there is no folder {self._aside.parent}; make it first")
            if self._path.suffix != ".jsonl":  # --drop and --select recognize the format by the extension
                raise OptionError(f"output (--output) has JSON lines: its name must end in .jsonl, got {self._path}")
            self._file = self._aside.open("x", encoding="utf-8")
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._path is None:
            return
        try:
            self._file.close()
            if kind is None:
                self._aside.replace(self._path)
        finally:
            with suppress(OSError):  # otherwise this error would hide the error of the block
                self._aside.unlink()
