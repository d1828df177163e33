"""Open the source of a conversion, and say what its store comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dbloader.errors import OptionError
from dbloader.records.manifest import FILE_FIELDS
from dbloader.sources.base import full_path
from dbloader.sources.open import open_source

if TYPE_CHECKING:
    import os

    from dbloader.conversion.file_to_record import FileConverter
    from dbloader.conversion.transcode import ImageFormat
    from dbloader.sources.base import Source


def open_files(images: ImageFormat, *place: Any, **options: Any) -> Source:
    """Return the source at a place, if its further files fit the images as these will be."""
    found = open_source(*place, **options)
    if found.file_fields and (images.short_side is not None or images.max_side is not None):
        found.close()
        raise OptionError(
            "short_side (--short-side) and max_side (--max-side) make images smaller, but not the files in the field "
            f"{', '.join(map(repr, found.file_fields))}, which would not fit them any more: make all of them smaller "
            "before the conversion, or leave the option out"
        )
    return found


def describe_source(
    found: Source, listing: str | os.PathLike[str] | None, shuffle: int | None, converter: FileConverter
) -> dict[str, Any]:
    """Return the ``source`` of a manifest: where the records came from, and the options that decided them."""
    place: dict[str, Any] = {"path": found.place, "listing": None if listing is None else full_path(listing)}
    if found.file_fields:
        place[FILE_FIELDS] = [*found.file_fields]
    return {**place, "shuffle": shuffle, **converter.settings()}
