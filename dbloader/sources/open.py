"""Recognize the kind of source at a place, and open it.

The module of a source is imported when a place is recognized as one: a folder of images needs none of the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dbloader._options import check_path
from dbloader.errors import NotAStoreError, OptionError, SourceError
from dbloader.records.record import checked_file_fields
from dbloader.remote.places import is_remote
from dbloader.sources.base import checked_root, readable
from dbloader.sources.folder import TARS, ZIPS, scan
from dbloader.sources.labels import CLASSES, FILE_FIELDS
from dbloader.sources.metadata import find_metadata
from dbloader.sources.parquet import SAVED, find_parquet, has_images, read_parquet
from dbloader.sources.shards import expand_range, find_shards, names_beside
from dbloader.stores.lmdb.shard_table import is_sharded
from dbloader.stores.mongo.uri import is_mongo

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from dbloader.sources.base import Source


# mdb.c: a page begins with 16 bytes, then a meta page with this number.
_MAGIC_AT, _MAGIC = 16, (0xBEEFC0DE).to_bytes(4, "little")
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".7z", ".rar")


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
            "(--listing) or of a Parquet file; in tar files, 'mask' stands for files such as 17.mask.png"
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
            "mongodb:// place as the source, with a listing (--listing), or leave them out"
        )
    if is_mongo(source):
        return _open_mongo(source, listing, name_field, image_field, file_fields)
    if is_remote(source):
        from dbloader.sources.objects import read_listed_objects, scan_objects

        return scan_objects(source) if listing is None else read_listed_objects(source, listing, file_fields)
    metadata = find_metadata(source) if listing is None else None
    if listing is not None or metadata is not None:
        return _open_listing(source, listing, metadata, file_fields)
    file = find_lmdb(source)
    if is_sharded(source) or file is not None:
        return _open_lmdb(source, file)
    tables, tars, zips = find_parquet(source), find_shards(source, TARS), find_shards(source, ZIPS)
    if tables and (tars or zips) and not has_images(tables):
        tables = []  # such as img2dataset's, of addresses and captions
    kinds = {"Parquet files with images": tables, "tar files": tars, "zip files": zips}
    if len(found := [kind for kind, paths in kinds.items() if paths]) > 1:
        raise SourceError(f"{readable(source)}: holds {' and '.join(found)}: put each kind into a folder of its own")
    if tables:
        return _alone(read_parquet(source, tables, file_fields), source, tables, SAVED)
    if tars:
        from dbloader.sources.tar import read_tars

        return _alone(read_tars(source, tars, file_fields), source, tars, (CLASSES, FILE_FIELDS))
    if zips:
        from dbloader.sources.zip import read_zips

        return _alone(read_zips(source, zips), source, zips, ())
    if readable(source).lower().endswith(_PACKED) and expand_range(source)[0].is_file():
        raise SourceError(
            f"{readable(source)}: is compressed, and not as one of {', '.join(TARS[1:])}, which are read: extract its "
            "files into a folder"
        )
    return scan(source)


def _open_mongo(
    source: str | os.PathLike[str],
    listing: str | os.PathLike[str] | None,
    name_field: str | None,
    image_field: str | None,
    file_fields: tuple[str, ...],
) -> Source:
    """Return the source of a store, or with a listing of a collection of files."""
    if listing is not None:
        from dbloader.sources.collection import read_collection

        return read_collection(
            source,
            listing,
            name_field=name_field or "img_name",
            image_field=image_field or "bson_img",
            file_fields=file_fields,
        )
    from dbloader.sources.store import read_store

    try:
        return read_store(source)
    except NotAStoreError as error:
        raise OptionError(
            f"{error}; a collection of files needs a listing (--listing) of the files to take and their labels"
        ) from error


def _open_listing(
    source: str | os.PathLike[str],
    listing: str | os.PathLike[str] | None,
    metadata: Path | None,
    file_fields: tuple[str, ...],
) -> Source:
    """Return the source of the images that annotations (docs/annotations.md), a listing or metadata name."""
    from dbloader.sources.listing import LISTING, METADATA, read_listing

    if listing is None:
        assert metadata is not None
        return read_listing(metadata, source, METADATA._replace(file_columns=file_fields))
    path, kind = Path(listing), Path(listing).suffix.lower()
    if kind == ".json" and path.is_file():
        from dbloader.sources.coco import read_coco

        if (found := read_coco(path, checked_root(source))) is not None:
            return found
    if kind in (".yaml", ".yml") or path.name == "classes.txt":
        from dbloader.sources.yolo import read_yolo

        return read_yolo(path, checked_root(source))
    if path.is_dir() or kind == ".txt":
        from dbloader.sources.voc import read_voc

        if path.is_dir():
            return read_voc(path, checked_root(source))
        # ImageSets/Main/train.txt, next to Annotations/
        return read_voc(path.absolute().parents[2] / "Annotations", checked_root(source), path)
    return read_listing(listing, source, LISTING._replace(file_columns=file_fields))


def find_lmdb(place: str | os.PathLike[str]) -> Path | None:
    """Return the LMDB file that a place names; None if it is not one."""
    try:
        path = Path(place)
        path = path / "data.mdb" if path.is_dir() else path
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return path if file.read(_MAGIC_AT + 4)[_MAGIC_AT:] == _MAGIC else None
    except (OSError, ValueError):
        return None  # scan says what is wrong with it


def _open_lmdb(source: str | os.PathLike[str], file: Path | None) -> Source:
    """Return the source of a store, or of another program's LMDB file; without a file it is a folder of shards."""
    from dbloader.sources.store import read_store

    if file is None:
        return read_store(source)
    from dbloader.sources.other_lmdb import is_store, read_lmdb

    if is_store(file):
        return read_store(file)
    return _alone(read_lmdb(source, file), source, [file], ("lock.mdb", "meta_info.txt"))


def _alone(found: Source, place: str | os.PathLike[str], paths: Sequence[Path], known: Sequence[str]) -> Source:
    """Return a source that has noted what else is in its folder."""
    found.beside = names_beside(place, paths, known)
    return found
