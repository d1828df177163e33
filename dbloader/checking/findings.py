"""Count the findings of a check, keep the first findings, and write all findings to a file."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dbloader.errors import OptionError
from dbloader.stores.lmdb.files import durable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KEPT = 1000


class Findings:
    """Collects findings about records.

    Args:
        file: File for all findings, as JSON lines; None for no file.
        found: Called with each of the first thousand findings.

    Attributes:
        counts: Number of findings of each kind.
        first: The first thousand findings. Each finding is a dict with the keyword arguments of `add`, and with the
            kinds of the finding, joined by commas, as ``difference``.
    """

    def __init__(self, file: IO[bytes] | None, found: Callable[[dict[str, Any]], object]) -> None:
        self.counts: Counter[str] = Counter()
        self.first: list[dict[str, Any]] = []
        self._file, self._found = file, found

    def add(self, *kinds: str, listed: bool = True, **row: Any) -> None:
        """Add a finding of one or more kinds. If ``listed`` is false, do not write the finding to the file."""
        self.counts.update(kinds)
        row["difference"] = ", ".join(kinds)
        if len(self.first) < _KEPT:
            self.first.append(row)
            self._found(row)
        if self._file is not None and listed:
            self._file.write(json.dumps(row).encode() + b"\n")


@contextmanager
def collect_findings(
    output: str | os.PathLike[str] | None, found: Callable[[dict[str, Any]], object] = lambda row: None
) -> Iterator[Findings]:
    """Yield a Findings object for the findings of a check. If the block succeeds, the new file ``output`` appears."""
    if output is None:
        yield Findings(None, found)
        return
    path = Path(output)
    if os.path.lexists(path):  # never overwrite: the path could be the store itself
        raise OptionError(f"output (--output) must be a new file, but {path} exists: choose another name")
    if not path.parent.is_dir():
        raise OptionError(f"--output {path}: there is no folder {path.parent}; make it first")
    if path.suffix != ".jsonl":  # dbloader copy (--drop, --select) detects the format by the extension
        raise OptionError(f"output (--output) has JSON lines: its name must end in .jsonl, got {path}")
    with durable(path) as file:
        yield Findings(file, found)
