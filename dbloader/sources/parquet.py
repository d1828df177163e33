"""Find Parquet files, and the Arrow files of a folder that ``save_to_disk`` of Hugging Face's datasets wrote.

The layouts: https://huggingface.co/docs/hub/datasets-file-names-and-splits
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader.errors import SourceError
from dbloader.sources.base import readable
from dbloader.sources.folder import SPLITS
from dbloader.sources.shards import expand_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.sources.base import Source

SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")
"""Names of the files that ``save_to_disk`` writes beside the images."""

_EXTENSIONS = (".parquet", ".arrow")
_SHARD = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})(?:-[0-9a-f]+)?\.parquet")
_WORD = re.compile(r"[A-Za-z]*")


def find_parquet(place: str | os.PathLike[str]) -> list[Path]:
    """Return the Parquet or Arrow files that a place names, in order; an empty list if it names none.

    It is one file, ``train-{00000..00099}-of-00100.parquet``, or a folder of the files of one split. SourceError if
    the folder has several splits, or lacks some files of its split.
    """
    text = os.fspath(place)
    try:
        names = sorted(path.name for path in Path(text).iterdir())
    except (OSError, ValueError):
        return expand_range(text) if text.lower().endswith(_EXTENSIONS) else []
    if "dataset_dict.json" in names:
        splits = [name for name in _load(Path(text, "dataset_dict.json"), "splits") if name in names]
        if len(splits) == 1:
            return find_parquet(Path(text, splits[0]))
        raise _several(text, splits, str(Path(text, splits[0])) if splits else "a folder below it")
    if "state.json" in names and "dataset_info.json" in names:
        files = _load(Path(text, "state.json"), "_data_files")
        return [Path(text, os.path.basename(str(file["filename"]))) for file in files if isinstance(file, dict)]  # noqa: PTH119
    files = [name for name in names if name.lower().endswith(".parquet") and name[0] != "." and name[:8] != "metadata"]
    if not files:
        return find_parquet(Path(text, "data")) if "data" in names else []
    splits = sorted({_split(name) for name in files})
    of_first = [name for name in files if _split(name) == splits[0]]
    shards = [shard for shard in map(_SHARD.fullmatch, of_first) if shard]
    if len(splits) > 1:
        example, count = of_first[0], len(of_first)
        if shards and count > 1:
            example = f"{splits[0]}-{{00000..{count - 1:05}}}-of-{count:05}.parquet"
        raise _several(text, splits, f"'{Path(text, example)}'")
    if shards and len(shards) < int(shards[0][3]):
        what = f"{len(shards):,} of {int(shards[0][3]):,} files of the split {splits[0]!r} are there"
        raise SourceError(f"{readable(text)}: only {what}: download the others, or name those to convert")
    return [Path(text, name) for name in files]


def read_parquet(place: str | os.PathLike[str], paths: Sequence[Path], file_fields: Sequence[str] = ()) -> Source:
    """Return the source of the images in Parquet or Arrow files, in that order.

    ``file_fields`` are columns of further images, beside those that are known to be.
    """
    try:
        from dbloader.sources.arrow_source import read_arrow
    except ImportError as error:
        if error.name and error.name.partition(".")[0] != "pyarrow":
            raise
        raise SourceError(
            f"{readable(place)}: reading Parquet needs pyarrow: pip install 'dbloader[parquet]'"
        ) from error
    return read_arrow(place, paths, file_fields)


def has_images(paths: Sequence[Path]) -> bool:
    """Return whether Parquet files have a column with images; False without pyarrow."""
    try:
        from dbloader.sources.arrow_columns import find_columns
        from dbloader.sources.arrow_files import Files
    except ImportError:
        return False
    try:
        return bool(find_columns(Files().open(paths[0]).schema, "").image)
    except SourceError:
        return False


def _split(name: str) -> str:
    """Return the split of a file, which its name says; "" if it does not."""
    shard = _SHARD.fullmatch(name)
    if shard:
        return shard[1]
    found = _WORD.match(name)
    return found[0] if found and found[0].lower() in SPLITS else ""


def _several(place: str, splits: list[str], example: str) -> SourceError:
    named = ", ".join(split or "files without a split's name" for split in splits)
    return SourceError(f"{readable(place)}: has several splits ({named}): convert each by itself, such as {example}")


def _load(path: Path, key: str) -> list[Any]:
    try:
        found = json.loads(path.read_bytes())[key]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(f"{readable(path)}: has no list {key!r} that can be read: {error!r}") from error
    return found if isinstance(found, list) else []
