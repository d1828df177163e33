"""Recognize the kind of a source, find its files, and open it.

Only the module of the recognized source is imported.
"""

from __future__ import annotations

import glob
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader._places import is_mongo, is_remote
from dbloader.errors import NotAStoreError, OptionError, SourceError
from dbloader.ext.sources.archive import TARS, ZIPS, ArchiveSource
from dbloader.ext.sources.class_folders import ClassFolderSource, is_split, names_images
from dbloader.ext.sources.labels import CLASSES, FIELDS_FILE, TARGET_FILE
from dbloader.ext.sources.lmdb_files import find_lmdb, is_store
from dbloader.sources.base import Listing, checked_root, readable
from dbloader.sources.folder import EXTENSIONS, METADATA_FILES, is_system
from dbloader.stores.lmdb.shard_table import is_sharded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.ext.sources.options import Reading
    from dbloader.sources.base import Source

# Exports, Hugging Face's datasets, LMDB and BasicSR write these files beside the files with images. A report does not
# count these files as left out.
_COMPANIONS = (
    CLASSES,
    FIELDS_FILE,
    TARGET_FILE,
    "dataset_dict.json",
    "dataset_info.json",
    "state.json",
    "lock.mdb",
    "meta_info.txt",
)

_RANGE = re.compile(r"\{([0-9]{1,18})\.\.([0-9]{1,18})\}")
_MOST_FILES = 1_000_000  # one range may name at most this many files

# https://huggingface.co/docs/hub/datasets-file-names-and-splits
_TABLES = (".parquet", ".arrow")
_TABLE_SHARD = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})(?:-[0-9a-f]+)?\.parquet")
_WORD = re.compile(r"[A-Za-z]*")


def recognize(
    source: str | os.PathLike[str],
    listing: Listing | None,
    reading: Reading,
    *,
    name_field: str | None,
    image_field: str | None,
    file_fields: tuple[str, ...],
    where: str | None,
) -> Source:
    """Return the source at a place. The arguments are as in ``open_source``."""
    if listing is None:
        return _open_place(source, file_fields, where, reading) or ClassFolderSource(source, reading)
    if is_mongo(source):
        from dbloader.ext.sources.collection import read_collection

        fields = {"name_field": name_field or "img_name", "image_field": image_field or "bson_img"}
        return read_collection(source, listing, file_fields=file_fields, encoding=reading.encoding, **fields)
    return _open_listing(source, listing, file_fields, reading)


def _open_listing(
    source: str | os.PathLike[str],
    listing: Listing,
    file_fields: tuple[str, ...],
    reading: Reading,
) -> Source:
    """Return the source for a listing, or for annotations (docs/annotations.md)."""
    if is_remote(source):
        from dbloader.ext.sources.objects import read_listed_objects

        return read_listed_objects(source, listing, file_fields, reading.encoding)
    path = Path(listing.path)
    _refuse_pointers(path)
    kind = path.suffix.lower()
    is_yolo = kind in (".yaml", ".yml", ".names", ".labels") or path.name == "classes.txt"
    if find_archives(source, TARS):
        raise SourceError(f"{readable(source)}: with a listing (--listing), convert reads no tar: extract the tar")
    if zips := find_archives(source, ZIPS):
        from dbloader.ext.sources.coco import read_coco
        from dbloader.ext.sources.listed_zip import read_listed_zip

        is_coco = kind == ".json" and path.is_file() and read_coco(path, Path(os.sep)) is not None
        if is_coco or is_yolo:
            whose = "COCO's" if is_coco else "YOLO's"
            raise SourceError(f"{readable(source)}: with {whose} annotations, convert reads no zip: extract the zip")
        return read_listed_zip(source, zips, listing, file_fields, reading.encoding, class_folder=reading.class_folder)
    if kind == ".json" and path.is_file():
        from dbloader.ext.sources.coco import read_coco

        if (found := read_coco(path, checked_root(source))) is not None:
            return found
    if is_yolo:
        from dbloader.ext.sources.yolo import YOLOSource

        return YOLOSource(path, checked_root(source))
    folders = path.absolute().parents  # in VOC, ImageSets/Main/train.txt lists files of Annotations
    annotations = folders[2] / "Annotations" if kind == ".txt" and len(folders) > 2 else path
    if annotations.is_dir():
        from dbloader.ext.sources.voc import VOCSource

        return VOCSource(annotations, checked_root(source), None if path.is_dir() else path)
    from dbloader.ext.sources.listing import read_listing

    return read_listing(listing, source, file_fields, encoding=reading.encoding, class_folder=reading.class_folder)


def _open_place(
    source: str | os.PathLike[str],
    file_fields: tuple[str, ...],
    where: str | None,
    reading: Reading,
) -> Source | None:
    """Recognize the kind of source at a place, and open it. Return None for a folder of image files."""
    if is_mongo(source):
        from dbloader.ext.sources.store import StoreSource

        try:
            return StoreSource(source, where)
        except NotAStoreError as error:
            raise OptionError(
                f"{error}; if its documents hold image files, give a listing (--listing) of the files and their labels"
            ) from error
    if is_remote(source):
        from dbloader.ext.sources.objects import ObjectFolder

        return ObjectFolder(source, reading)
    if any(Path(source, name).is_file() for name in METADATA_FILES):
        from dbloader.ext.sources.listing import read_listing
        from dbloader.ext.sources.metadata import find_metadata

        _refuse_pointers(*(Path(source, name) for name in METADATA_FILES))
        if (listing := find_metadata(Path(source))) is not None:
            options: dict[str, Any] = {"is_metadata": True, "class_folder": reading.class_folder}
            if zips := find_archives(source, ZIPS):
                from dbloader.ext.sources.listed_zip import read_listed_zip

                return read_listed_zip(source, zips, listing, file_fields, reading.encoding, **options)
            if find_archives(source, TARS):
                way = f"beside {listing.name}, convert reads no tars: extract them first"
                raise SourceError(f"{readable(source)}: {way}")
            return read_listing(listing, source, file_fields, encoding=reading.encoding, **options)
    if (annotations := Path(source, "_annotations.coco.json")).is_file():  # an export of Roboflow
        return _open_listing(source, Listing(annotations), file_fields, reading)
    file = find_lmdb(source)
    if file is not None or is_sharded(source):
        from dbloader.ext.sources.other_lmdb import LMDBSource
        from dbloader.ext.sources.store import StoreSource

        if file is None or is_store(file):
            return StoreSource(file or source, where)
        return _with_others(LMDBSource(source, file), source, [file])
    tables, tars, zips = find_tables(source), find_archives(source, TARS), find_archives(source, ZIPS)
    _refuse_pointers(*tables[:1], *tars[:1], *zips[:1])
    if tables and (tars or zips) and not _has_images(tables[0]):
        tables = []  # the tables have no images, only URLs and captions, as from img2dataset
    kinds = {"Parquet files with images": tables, "tar files": tars, "zip files": zips}
    if len(kept := [kind for kind, paths in kinds.items() if paths]) > 1:
        raise SourceError(f"{readable(source)}: holds {' and '.join(kept)}: put each kind into a folder of its own")
    if tables:
        return _open_tables(source, tables, file_fields, reading)
    if (tars or zips) and Path(source).is_dir():
        _check_splits(source, tars or zips)
    if tars:
        from dbloader.ext.sources.tar import TarSource

        return _with_others(TarSource(source, tars, file_fields, reading), source, tars)
    if zips:
        from dbloader.ext.sources.zip import ZipSource

        return _with_others(ZipSource(source, zips, reading), source, zips)
    return None


def _refuse_pointers(*paths: Path) -> None:
    """Raise SourceError if a file is a pointer of Git LFS."""
    for path in filter(Path.is_file, paths):
        with path.open("rb") as file:
            if file.read(30).startswith(b"version https://git-lfs"):
                raise SourceError(f"{readable(path)}: is a pointer of Git LFS: run git lfs pull, and convert again")


def _with_others(found: Source, place: str | os.PathLike[str], paths: Sequence[Path]) -> Source:
    """Count the files that lie beside the files of a source, and return the source."""
    known = {*_COMPANIONS, *(path.name for path in paths), *(path.parent.name for path in paths)}
    try:
        names = os.listdir(place)  # noqa: PTH208 - pathlib makes "." of ""
    except OSError:  # the place is no folder, or listing it is not allowed
        return found
    for name in names:
        if name.startswith("."):
            found.beside.hidden += 1
        elif name not in known:
            found.beside.skip(os.fsencode(name))
            is_table = name.lower().endswith((".csv", ".tsv"))
            if isinstance(found, ArchiveSource) and (is_table or names_images(Path(place), os.fsencode(name))):
                way = f"give it as a listing (--listing {readable(Path(place, name))})"
                what = f"{readable(name)} beside the archives is not read: if it has labels or boxes of the images"
                found.warnings = (*found.warnings, f"{what}, {way}")
    return found


# --- tar and zip files ------------------------------------------------------------------------------------------------


def find_archives(place: str | os.PathLike[str], extensions: tuple[str, ...]) -> list[Path]:
    """Return the tar or zip files at a place, in order; [] if there are none.

    A place is a file, ``shards/{000..127}.tar``, ``shards/*.tar`` or a folder. For a folder that also contains images
    or folders, return [].
    """
    text = os.fspath(place)
    if text.lower().endswith(extensions) and not os.path.isdir(text):  # noqa: PTH112 - pathlib makes "." of ""
        return expand_range(text)
    found: list[str] = []
    try:
        with os.scandir(text) as entries:
            for entry in entries:
                name = entry.name.lower()
                if name.startswith(".") or is_system(entry.name):
                    continue
                if name.endswith(extensions) and entry.is_file():
                    found.append(entry.name)
                elif name.endswith(EXTENSIONS) or entry.is_dir():
                    return []
    except OSError:
        return []  # FolderSource is tried last, and raises a clear error
    return [Path(text, name) for name in sorted(found)]


def expand_range(place: str | os.PathLike[str]) -> list[Path]:
    """Expand ``{000..127}`` or ``*`` in a path, and return the paths in order. Return any other path alone."""
    text = os.fspath(place)
    found = _RANGE.search(text)
    if os.path.exists(text) or (found is None and not glob.has_magic(text)):  # noqa: PTH110 - pathlib makes "." of ""
        return [Path(text)]
    if found is None:
        return [Path(name) for name in sorted(glob.glob(text))] or [Path(text)]  # noqa: PTH207 - absolute or not
    first, last = found.groups()
    numbers = range(int(first), int(last) + 1)
    if not 0 < len(numbers) <= _MOST_FILES:
        raise SourceError(
            f"{readable(place)}: its range names {len(numbers):,} files: give a range of 1 to {_MOST_FILES:,} "
            "files, from the lower number to the higher one"
        )
    return [Path(_RANGE.sub(str(number).zfill(len(first)), text, count=1)) for number in numbers]


# --- Parquet files, and folders that Hugging Face's datasets wrote ----------------------------------------------------


def find_tables(place: str | os.PathLike[str]) -> list[Path]:
    """Return the Parquet or Arrow files at a place, in order; [] if there are none.

    A place is a file, ``train-{00000..00099}-of-00100.parquet``, a folder with the files of one split, or a folder that
    ``save_to_disk`` wrote.

    Raises:
        SourceError: The folder has several splits, or lacks files of its split.
    """
    text = os.fspath(place)
    try:
        names = sorted(path.name for path in Path(text).iterdir())
    except (OSError, ValueError):
        return expand_range(text) if text.lower().endswith(_TABLES) else []
    if "dataset_dict.json" in names:
        splits = [name for name in _read_list(Path(text, "dataset_dict.json"), "splits") if name in names]
        if len(splits) == 1:
            return find_tables(Path(text, splits[0]))
        raise _several_splits(text, splits)
    if "state.json" in names and "dataset_info.json" in names:
        files = _read_list(Path(text, "state.json"), "_data_files")
        return [Path(text, os.path.basename(str(file["filename"]))) for file in files if isinstance(file, dict)]  # noqa: PTH119
    files = [name for name in names if name.lower().endswith(".parquet") and name[0] != "." and name[:8] != "metadata"]
    if not files:
        return find_tables(Path(text, "data")) if "data" in names else []
    splits = sorted({_split_of(name) for name in files})
    if len(splits) > 1:
        raise _several_splits(text, splits)
    shards = [shard for shard in map(_TABLE_SHARD.fullmatch, files) if shard]
    if shards and len(shards) < int(shards[0][3]):
        what = f"{len(shards):,} of {int(shards[0][3]):,} files of the split {splits[0]!r} are there"
        raise SourceError(f"{readable(text)}: only {what}: download the others, or give the files to convert")
    return [Path(text, name) for name in files]


def _split_of(name: str) -> str:
    """Return the split in a file's name; "" if the name has none."""
    shard = _TABLE_SHARD.fullmatch(name)
    if shard:
        return shard[1]
    found = _WORD.match(name)
    return found[0] if found and is_split(found[0]) else ""


def _check_splits(place: str | os.PathLike[str], paths: list[Path]) -> None:
    """Raise SourceError if the names of the tars or zips in a folder show that they are several splits."""
    splits = {next(filter(is_split, re.findall("[A-Za-z]+", path.name)), "").lower() for path in paths}
    if len(splits - {""}) > 1:
        train, every = (readable(paths[0].with_name(f"{name}{paths[0].suffix}")) for name in ("*train*", "*"))
        raise _several_splits(os.fspath(place), sorted(splits), f"'{train}' ('{every}' for all)")


def _several_splits(
    place: str, splits: list[str], files: str = "'train-{00000..00099}-of-00100.parquet'"
) -> SourceError:
    named = ", ".join(split or "files without a split's name" for split in splits)
    way = f"convert each by itself: give its folder, or its files as in {files}"
    return SourceError(f"{readable(place)}: has several splits ({named}): {way}")


def _read_list(path: Path, key: str) -> list[Any]:
    """Return a list in a JSON object; SourceError if the file cannot be read."""
    try:
        found = json.loads(path.read_bytes())[key]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(f"{readable(path)}: has no list {key!r} that can be read: {error!r}") from error
    return found if isinstance(found, list) else []


def _open_tables(
    place: str | os.PathLike[str], tables: list[Path], file_fields: tuple[str, ...], reading: Reading
) -> Source:
    try:
        from dbloader.ext.sources.parquet import ParquetSource
    except ImportError as error:
        if error.name and error.name.partition(".")[0] != "pyarrow":
            raise
        raise SourceError(
            f"{readable(place)}: reading Parquet needs pyarrow: pip install 'dbloader[parquet]'"
        ) from error
    return _with_others(ParquetSource(place, tables, file_fields, reading), place, tables)


def _has_images(table: Path) -> bool:
    """Return whether a Parquet file has a column with images; False without pyarrow."""
    try:
        from dbloader.ext.sources.parquet import has_images
    except ImportError:
        return False
    return has_images(table)
