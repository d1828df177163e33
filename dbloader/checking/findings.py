"""What a check found: counted by kind, the first ones kept, and all of them written to a file."""

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
    """Findings about records, in a ``with`` block; a new file appears when the block is left without an error.

    Attributes:
        counts: Findings by kind.
        first: The first thousand, as ``add`` takes them.
    """

    def __init__(
        self, output: str | os.PathLike[str] | None, found: Callable[[dict[str, Any]], object] = lambda row: None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.first: list[dict[str, Any]] = []
        self._found = found
        self._path = None if output is None else Path(output)
        self._aside = Path(f"{output}.{os.getpid()}.partial")  # OUTPUT.partial may be an unfinished store

    def add(self, *kinds: str, listed: bool = True, **row: Any) -> None:
        """Count a finding by its kinds; the file leaves it out unless it is ``listed``."""
        self.counts.update(kinds)
        row["difference"] = ", ".join(kinds)
        if len(self.first) < _KEPT:
            self.first.append(row)
            self._found(row)
        if self._path is not None and listed:
            self._file.write(json.dumps(row) + "\n")

    def __enter__(self) -> Self:
        if self._path is not None:
            if os.path.lexists(self._path):  # it may be the store itself, by a slip
                raise OptionError(f"output (--output) must be a new file, and {self._path} exists: move it away")
            if not self._aside.parent.is_dir():
                raise OptionError(f"--output {self._path}: there is no folder {self._aside.parent}; make it first")
            if self._path.suffix != ".jsonl":  # by which --drop and --select know what is in it
                raise OptionError(f"output (--output) has JSON lines: its name must end in .jsonl, got {self._path}")
            self._file = self._aside.open("x", encoding="utf-8")
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._path is None:
            return
        self._file.close()
        if kind is None:
            self._aside.replace(self._path)
        else:
            with suppress(OSError):
                self._aside.unlink()
