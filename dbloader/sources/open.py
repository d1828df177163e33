"""Find out what kind of source is at a place, and open it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader.errors import OptionError
from dbloader.sources.annotations import read_annotations
from dbloader.sources.folder import scan
from dbloader.sources.listing import read_listing
from dbloader.sources.other_lmdb import find_lmdb, read_lmdb
from dbloader.sources.tar import find_tars, read_tars
from dbloader.stores.mongo.uri import is_mongo

if TYPE_CHECKING:
    import os

    from dbloader.sources.base import Source


def open_source(
    source: str | os.PathLike[str],
    listing: str | os.PathLike[str] | None,
    *,
    name_field: str | None,
    image_field: str | None,
) -> Source:
    """Return the source at a place; SourceError or OptionError if there is none. See ``convert`` for the arguments.

    A place says what it is by what is there, in the order of these lines; a folder of images is the last.
    """
    if is_mongo(source):
        if listing is None:
            raise OptionError(
                "a collection in MongoDB needs a listing of the files to take and their labels: give one (--list), "
                "or copy a store with dbloader copy"
            )
        from dbloader.sources.collection import read_collection  # importing pymongo takes longer than all the rest

        return read_collection(
            source, listing, name_field=name_field or "img_name", image_field=image_field or "bson_img"
        )
    if name_field is not None or image_field is not None:
        raise OptionError(
            "name_field (--name-field) and image_field (--image-field) are for a collection in MongoDB: give a "
            "mongodb:// place as the source, or leave them out"
        )
    if listing is not None:
        return read_annotations(listing, source) or read_listing(listing, source)
    file = find_lmdb(source)
    if file is not None:
        return read_lmdb(source, file)
    tars = find_tars(source)
    return read_tars(source, tars) if tars else scan(source)
