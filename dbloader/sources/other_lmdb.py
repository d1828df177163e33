"""Images in LMDB files that other programs made: one file, or a folder with ``data.mdb``.

Every layout is found by its keys, and by the first bytes of some values: see ``lmdb_layouts``. The file is only read,
without LMDB's locks: no other program may write to it meanwhile.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from dbloader.errors import SourceError
from dbloader.sources.base import Problem, Source, Tally, full_path
from dbloader.sources.lmdb_layouts import find_layout
from dbloader.sources.lmdb_pairs import Pairs
from dbloader.stores.lmdb.keys import META, RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from dbloader.sources.base import Entry
    from dbloader.sources.lmdb_pairs import Layout


def is_store(path: Path) -> bool:
    """Return whether an LMDB file is a store of dbloader, finished or not."""
    pairs = Pairs(path)
    try:
        return pairs.size(RECORDS) is not None and pairs.size(META) is not None
    finally:
        pairs.close()


def read_lmdb(place: str | os.PathLike[str], path: Path) -> LMDBSource:
    """Return the source of the images in an LMDB file; SourceError if it has none, or they cannot be read."""
    pairs = Pairs(path)
    try:
        pairs.check_size()
        return LMDBSource(place, pairs, find_layout(pairs))
    except BaseException:
        pairs.close()
        raise


class LMDBSource(Source):
    """The images in an LMDB file; made by ``read_lmdb``."""

    reads = "data.mdb"

    def __init__(self, place: str | os.PathLike[str], pairs: Pairs, layout: Layout) -> None:
        super().__init__(Path(os.sep), (), place=full_path(place))
        self._pairs, self.layout = pairs, layout

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        left_out = yield from self.layout.entries(self._pairs)
        of = f"{left_out:,} other value{'s' * (left_out != 1)} of the file left out"
        return Tally([f"{of}: it was read as {self.layout.what}"] if left_out else [])

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Problem]:
        for entry in entries:
            (key,) = entry.location
            try:
                size = self._pairs.size(key)
                hold(size or 0)  # outside of a transaction: it may wait, and a fork waits for transactions
                value = self._pairs.get(key)
                yield Problem(entry.name, "is not in the file") if value is None else self.layout.image(value)
            except SourceError as error:
                yield Problem(entry.name, str(error))
            except ValueError as error:
                yield Problem(entry.name, f"holds no image: {error}")

    @override
    def close(self) -> None:
        self._pairs.close()
