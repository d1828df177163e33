"""Find out what kind of source is at a place, and open it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader._options import check_path
from dbloader.errors import NotAStoreError, OptionError, SourceError
from dbloader.records.record import checked_file_fields
from dbloader.remote.places import is_remote
from dbloader.sources.annotations import read_annotations
from dbloader.sources.base import readable
from dbloader.sources.folder import scan
from dbloader.sources.listing import LISTING, METADATA, read_listing
from dbloader.sources.metadata import find_metadata
from dbloader.sources.other_lmdb import find_lmdb, is_store, read_lmdb
from dbloader.sources.parquet import find_parquet, read_parquet
from dbloader.sources.shards import expand_range, find_shards
from dbloader.sources.store import read_store
from dbloader.sources.tar import read_tars
from dbloader.sources.zip import read_zips
from dbloader.stores.lmdb.shard_table import is_sharded
from dbloader.stores.mongo.uri import is_mongo

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from dbloader.sources.base import Source


_PACKED = (".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst", ".tzst", ".lz4", ".7z", ".rar")


def open_source(
    source: str | os.PathLike[str],
    listing: str | os.PathLike[str] | None,
    *,
    name_field: str | None,
    image_field: str | None,
    file_fields: Sequence[str] = (),
) -> Source:
    """Return the source at a place; SourceError or OptionError if nothing there can be converted.

    The arguments are those of ``convert``.
    """
    check_path("source", source)
    check_path("listing", listing, none=True)
    file_fields = checked_file_fields(file_fields)
    found = _open(source, listing, name_field, image_field, file_fields)
    if missing := ", ".join(repr(name) for name in file_fields if name not in found.file_fields):
        place = found.place if listing is None else readable(listing)
        found.close()
        raise OptionError(
            f"file_fields (--file-field) {missing}: {place} has no such files: give the name of a column of a listing "
            "(--list) or of a Parquet file; in tar files, 'mask' stands for files such as 17.mask.png"
        )
    return found


def _open(
    source: str | os.PathLike[str],
    listing: str | os.PathLike[str] | None,
    name_field: str | None,
    image_field: str | None,
    file_fields: tuple[str, ...],
) -> Source:
    """Return the source; the kinds are tried in the order of these lines, a folder of images last."""
    if (name_field is not None or image_field is not None) and (listing is None or not is_mongo(source)):
        raise OptionError(
            "name_field (--name-field) and image_field (--image-field) are for a collection in MongoDB: give a "
            "mongodb:// place as the source, with a listing (--list), or leave them out"
        )
    if is_mongo(source) and listing is not None:
        from dbloader.sources.collection import read_collection  # importing pymongo takes longer than all the rest

        return read_collection(
            source,
            listing,
            name_field=name_field or "img_name",
            image_field=image_field or "bson_img",
            file_fields=file_fields,
        )
    if is_mongo(source):
        try:
            return read_store(source)
        except NotAStoreError as error:
            raise OptionError(
                f"{error}; a collection of files needs a listing of those to take and their labels: give one (--list)"
            ) from error
    if is_remote(source):
        from dbloader.sources.objects import read_listed_objects, scan_objects

        return scan_objects(source) if listing is None else read_listed_objects(source, listing, file_fields)
    if listing is not None:
        return read_annotations(listing, source) or read_listing(
            listing, source, LISTING._replace(file_columns=file_fields)
        )
    metadata = find_metadata(source)
    if metadata is not None:
        return read_listing(metadata, source, METADATA._replace(file_columns=file_fields))
    if is_sharded(source):
        return read_store(source)
    file = find_lmdb(source)
    if file is not None:
        return read_store(file) if is_store(file) else read_lmdb(source, file)
    parquet = find_parquet(source)
    if parquet:
        return read_parquet(source, parquet, file_fields)
    tars, zips = find_shards(source, ".tar"), find_shards(source, ".zip")
    if tars and zips:
        raise SourceError(f"{readable(source)}: holds tar files and zip files: put each kind into a folder of its own")
    if tars or zips:
        return read_tars(source, tars, file_fields) if tars else read_zips(source, zips)
    if readable(source).lower().endswith(_PACKED) and expand_range(source)[0].is_file():
        raise SourceError(
            f"{readable(source)}: is compressed, so its images have no place of their own in it: decompress a tar, "
            "with gunzip or unzstd, or extract the files into a folder"
        )
    return scan(source)
