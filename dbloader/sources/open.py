"""Open the source at a place: a folder of image files, or what `recognize` finds there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dbloader._extensions import extension, has_extensions
from dbloader._options import check_path
from dbloader._places import is_mongo
from dbloader.errors import OptionError
from dbloader.records.record import checked_file_fields
from dbloader.sources.base import UNDECIDED, Listing, readable
from dbloader.sources.folder import FolderSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.sources.base import Reading, Source


def open_source(
    source: str | os.PathLike[str],
    listing: str | os.PathLike[str] | Listing | None = None,
    *,
    name_field: str | None = None,
    image_field: str | None = None,
    file_fields: Sequence[str] = (),
    where: str | None = None,
    reading: Reading = UNDECIDED,
) -> Source:
    """Return the source at a place; the arguments are as in ``convert``, and ``reading`` has more of them.

    Raises:
        SourceError: Nothing at the place can be converted.
        OptionError: An argument does not fit the place.
    """
    check_path("source", source)
    listing = None if listing is None else Listing.of(listing)
    file_fields = checked_file_fields(file_fields)
    if (name_field is not None or image_field is not None) and not (listing is not None and is_mongo(source)):
        raise OptionError(
            "name_field (--name-field) and image_field (--image-field) are for a collection in MongoDB: give a "
            "mongodb:// place as the source, with a listing (--listing), or leave them out"
        )
    fields = {"name_field": name_field, "image_field": image_field, "file_fields": file_fields, "where": where}
    is_needed = has_extensions() or listing is not None or where is not None or "://" in os.fspath(source)
    other: Source | None = extension("open_other")(source, listing, reading, **fields) if is_needed else None
    found = other or FolderSource(source, reading)
    for name, value in reading.named().items():
        if name not in found.follows:
            found.close()
            option = f"{name} (--{name.replace('_', '-')})"
            raise OptionError(f"{option} {value!r} decides nothing for {found.place}: leave it out")
    if listing is not None and listing.named() and not found.has_columns:
        found.close()
        raise OptionError(
            f"{', '.join(listing.named())} of a Listing (--image-column, --label-column, --separator, --text-column) "
            f"decide nothing for {readable(listing.path)}: it has no columns, so leave them out"
        )
    if missing := ", ".join(repr(name) for name in file_fields if name not in found.file_fields):
        place = found.place if listing is None else readable(listing.path)
        found.close()
        raise OptionError(
            f"file_fields (--file-field) {missing}: {place} has no such files: give the name of a column of a listing "
            "(--listing) or of a Parquet file; in tar files, the name 'mask' means files such as 17.mask.png"
        )
    if where is not None and not found.stores:
        found.close()
        raise OptionError(f"where (--where) selects records of a store, and {found.place} is no store: leave it out")
    return found
