"""Open a source with the options of a conversion."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dbloader._options import check_path
from dbloader._places import is_mongo
from dbloader.errors import OptionError
from dbloader.ext.sources.boxes import AS_FRACTIONS
from dbloader.ext.sources.class_folders import name_warnings, number_warnings
from dbloader.ext.sources.classes import check_class_lists, follow_train, use_classes
from dbloader.ext.sources.listed_boxes import AS_COCO
from dbloader.ext.sources.options import UNDECIDED, Reading, decided_boxes
from dbloader.ext.sources.recognize import recognize
from dbloader.records.record import checked_file_fields
from dbloader.sources.base import Listing, readable

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from dbloader.conversion.settings import Settings
    from dbloader.sources.base import Source


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
    """Return the source at a place. The arguments are options of ``convert``. ``reading`` contains several of them.

    Raises:
        SourceError: Nothing at the place can be converted.
        OptionError: An argument does not fit the place.
    """
    check_path("source", source)
    listing = None if listing is None else Listing.of(listing)
    file_fields = checked_file_fields(file_fields)
    if (name_field is not None or image_field is not None) and not (listing is not None and is_mongo(source)):
        raise OptionError(
            "name_field (--name-field) and image_field (--image-field) are for a collection in MongoDB: leave them "
            "out, or give a mongodb:// source and a listing (--listing)"
        )
    found = recognize(
        source, listing, reading, name_field=name_field, image_field=image_field, file_fields=file_fields, where=where
    )
    for name, value in reading.named().items():
        if name not in found.follows:
            found.close()
            option = f"{name} (--{name.replace('_', '-')})"
            raise OptionError(f"{option} {value!r} has no effect on {found.place}: leave it out")
    if listing is not None and not found.has_columns:
        for name in listing.named():
            found.close()
            option = f"--{name}{'-column' * (name != 'separator')} (Listing({name}=))"
            raise OptionError(f"{option} has no effect on {readable(listing.path)}: it has no columns, so leave it out")
    if missing := ", ".join(repr(name) for name in file_fields if name not in found.file_fields):
        place = found.place if listing is None else readable(listing.path)
        found.close()
        raise OptionError(
            f"file_fields (--file-field) {missing}: {place} has no such files: name a column of the listing "
            "(--listing) or Parquet file; in tar files, 'mask' means files such as 17.mask.png"
        )
    if where is not None and not found.stores:
        found.close()
        raise OptionError(f"where (--where) selects records of a store, and {found.place} is no store: leave it out")
    if decided_boxes(reading.boxes)[1]:
        found.warnings = tuple(warning for warning in found.warnings if warning not in (AS_COCO, AS_FRACTIONS))
    if not found.stores:
        found.warnings = (*found.warnings, *number_warnings(found), *name_warnings(found.classes))
    return found


def open_with(settings: Settings, *, beside: bool = True) -> Source:
    """Return the source of a conversion. The user, or ``train`` beside the source, may give its classes.

    Without ``beside``, ignore ``train``, because a conversion's plan, or the store to extend, has decided the labels.

    Raises:
        SourceError: Nothing at the place can be converted.
        OptionError: An option does not fit the place, or would shrink images but not their masks.
    """
    given = settings.given_classes()  # report a wrong option before opening the source, which may take long
    open_one = partial(
        open_source,
        name_field=settings.name_field,
        image_field=settings.image_field,
        file_fields=settings.file_fields,
        where=settings.where,
        reading=Reading(**settings.reading()),
    )
    found = open_one(settings.source, settings.listing)
    if given is not None:
        use_classes(found, given)
    else:
        check_class_lists(found)
        if beside:
            follow_train(found, settings.source, settings.listing, open_one)
    if found.file_fields and (settings.images.short_side is not None or settings.images.max_side is not None):
        found.close()
        raise OptionError(
            "short_side (--short-side) and max_side (--max-side) make images smaller, but not the files in the "
            f"field {', '.join(map(repr, found.file_fields))}: leave the option out, or make images and files smaller "
            "before the conversion"
        )
    return found
