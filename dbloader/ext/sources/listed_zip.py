"""Read images from zip files, with a listing or with metadata beside the zips."""

from __future__ import annotations

import os
import unicodedata
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader._describe import counted
from dbloader.ext.sources.listing import ListingSource, read_listing
from dbloader.ext.sources.listing_files import ListedFiles
from dbloader.ext.sources.zip import index_zips, read_members
from dbloader.sources.base import Problem, Tally, full_path, readable
from dbloader.sources.folder import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from dbloader.sources.base import Entry, Listing


def read_listed_zip(
    place: str | os.PathLike[str],
    zips: Sequence[Path],
    listing: Listing | str | os.PathLike[str],
    file_fields: Sequence[str] = (),
    encoding: str | None = None,
    **options: Any,
) -> ListingSource:
    """Return the source for a listing of images in zip files. ``read_listing`` gets the ``options``."""
    make, members = partial(ListedZip, place, zips, encoding), index_zips(zips, Tally(), encoding)
    shortest = {members[path]: path.encode() for path in sorted(members, key=len, reverse=True)}
    files = ListedFiles(None, lambda path: unicodedata.normalize("NFC", readable(path)) in members, shortest.values)
    return read_listing(listing, os.sep, file_fields, make, files, **options)


class ListedZip(ListingSource):
    """Reads the images of a listing from zip files; made by ``read_listed_zip``.

    `index_zips` explains which paths name a file. All paths stay in memory. Each iteration also loads each zip's list
    of files.
    """

    def __init__(
        self, place: str | os.PathLike[str], zips: Sequence[Path], encoding: str | None, *described: Any
    ) -> None:
        super().__init__(*described)
        self.place, self._zips, self._encoding = full_path(place), zips, encoding

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        tally = Tally()
        members = index_zips(self._zips, tally, self._encoding)
        unused = {location for key, location in members.items() if key.lower().endswith(EXTENSIONS)}
        where = " and ".join(path.name for path in self._zips[:3])
        for item in super().entries():
            if isinstance(item, Problem):
                yield item
                continue
            wanted = {name: members.get(unicodedata.normalize("NFC", name)) for name in _names(item)}
            found = {name: location for name, location in wanted.items() if location is not None}
            if missing := ", ".join(wanted.keys() - found.keys()):
                yield Problem(item.name, f"{missing} is missing or twice in {where}")
                continue
            unused.difference_update(found.values())
            files = {field: file._replace(location=found[file.name]) for field, file in item.files.items()}
            yield item._replace(location=found[item.name], files=files)
        if unused and self._rules.is_metadata:
            tally.warnings.append(f"{counted(len(unused), 'image')} of {where} in no row of the metadata: left out")
        return tally

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Problem]:
        return read_members(entries, hold)


def _names(entry: Entry) -> list[str]:
    return [entry.name, *(file.name for file in entry.files.values())]
