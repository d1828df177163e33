"""Append to a store of shards: what new images must agree with, and the classes and source of both together.

The old shards stay as they are. New shards, a new index and a new manifest are added.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader.conversion.parts.plan import partial_folder, target_of
from dbloader.conversion.stored_records import common_values, describe_fields
from dbloader.errors import OptionError, SourceError, StoreNotFoundError
from dbloader.sources.boxes import LABELS
from dbloader.stores.lmdb.partial import close_locked, open_locked
from dbloader.stores.lmdb.shard_table import ShardTable, is_sharded
from dbloader.stores.mongo.uri import is_mongo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dbloader.conversion.file_list import FileList
    from dbloader.records.manifest import Manifest
    from dbloader.sources.base import Source

_ADDS = "append (--append) adds to a folder of shards"
_JOIN = "convert the new images into a store of their own, and join the two with dbloader copy"


@contextmanager
def adding_to(destination: str | os.PathLike[str]) -> Iterator[None]:
    """Keep other processes from adding to a store inside the block.

    Two processes that add the same images would share one plan, and add the images only once.

    Raises:
        StoreLockedError: Another process adds to the store.
        OptionError: The store is no folder of shards.
        StoreNotFoundError: No store is at the destination.
    """
    read_base(destination)
    lock = Path(f"{partial_folder(destination)}.lock")
    descriptor = open_locked(lock, os.O_CREAT, os.fspath(destination), "adding to")
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        close_locked(descriptor)


def read_base(destination: str | os.PathLike[str]) -> ShardTable:
    """Return the shard table of a store to append to; OptionError or StoreNotFoundError if that is impossible."""
    if is_mongo(destination):
        raise OptionError(f"{_ADDS}, not to a store in MongoDB: {_JOIN}")
    target, name = target_of(destination), os.fspath(destination)
    if not os.path.lexists(target):
        raise StoreNotFoundError(f"{_ADDS}, and nothing is at {name}: shards=8 (--shards 8) without append makes it")
    if not is_sharded(target):
        shards = f"dbloader convert {name} NEW.lmdb --shards 8 makes a folder of shards of it"
        raise OptionError(f"{_ADDS}, and {name} is something else: {_JOIN}" + f"; or {shards}" * target.is_file())
    return ShardTable.read(target)


def join_classes(base: Manifest, found: Source, place: str) -> tuple[list[str], list[int] | None]:
    """Return the classes of a store and a source together, and the label of each of the source's classes.

    The store's own classes come first. The labels are None if the source's labels need not change.

    Raises:
        OptionError: The labels contradict each other.
    """
    if not found.classes:
        return [*base.classes], [] if base.classes else None  # labels of boxes are not those of its classes
    if (base.labelled or LABELS in base.fields) and not base.classes:
        raise OptionError(
            f"the labels of {place} are integers, those of {found.place} have class names: give the new images "
            "integers by a listing (--listing)"
        )
    for names, where in ((base.classes, place), (found.classes, found.place)):
        if len({*names}) < len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise OptionError(
                f"{where}: two of its classes are called {twice!r}, so their names do not tell them apart"
            )
    classes = [*dict.fromkeys((*base.classes, *found.classes))]
    number = {name: label for label, name in enumerate(classes)}
    labels = [number[name] for name in found.classes]
    return classes, None if labels == [*range(len(labels))] else labels


def check_agreement(base: Manifest, found: Source, files: FileList, place: str) -> None:
    """Raise an error if new images have labels or file fields of another kind than the store.

    Raises:
        SourceError: The store's labels have class names, and a new image has an integer label.
        OptionError: A field has files in the new images, and other values in the store.
    """
    if base.classes and not found.classes:
        labelled = (files[position] for position in range(len(files)))
        if item := next((item for item in labelled if getattr(item, "label", None) is not None), None):
            raise SourceError(
                f"{found.place}: the label of {item.name} is an integer, those of {place} have class names: give the "
                "new images the names of their classes, by a listing (--listing)"
            )
    for name in {*found.file_fields} - {*base.file_fields}:
        if name in base.fields:
            raise OptionError(
                f"the field {name!r} has image files in the new images, and other values in {place}: give it another "
                "name in the new images"
            )


def join_sources(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Return the ``source`` of a store together with new shards, given the manifests of the store and the shards.

    Raises:
        OptionError: A field has image files in one manifest, and other values in another.
    """
    old, new, *_ = (manifest.source for manifest in manifests)
    source = common_values([old, new])
    places = dict.fromkeys([*str(old.get("path", "")).split(", "), new["path"]])
    return {**source, "path": ", ".join(filter(None, places)), **describe_fields(manifests)}
