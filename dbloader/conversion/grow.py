"""Add to a store of shards: what its new images must agree with, and how the store grows by them.

The shards that are there stay as they are. New ones come behind them, then a new index and a new manifest.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader.conversion.plan import remove_plan, target_of
from dbloader.conversion.stored_records import common_values
from dbloader.errors import OptionError, SourceError, StoreExistsError, StoreNotFoundError
from dbloader.records.manifest import FILE_FIELDS
from dbloader.sources.boxes import LABELS
from dbloader.stores.lmdb.publish_shards import give_second_name, publish_shards, replacing
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, ShardTable, kept_manifest
from dbloader.stores.lmdb.store import LMDBStore
from dbloader.stores.mongo.uri import is_mongo

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dbloader.conversion.file_list import FileList
    from dbloader.conversion.part import Receipt
    from dbloader.conversion.plan import Plan
    from dbloader.records.manifest import Manifest
    from dbloader.sources.base import Source

_ADDS = "append (--append) adds to a folder of shards"
_JOIN = "convert the new images into a store of their own, and join the two with dbloader copy"


class Joined(NamedTuple):
    """The classes of a store and of a source that is added to it.

    Attributes:
        classes: Name of each label of both from 0 on; those of the store come first.
        labels: The label of each class of the source; None if it keeps its labels.
    """

    classes: list[str]
    labels: list[int] | None


def read_base(destination: str | os.PathLike[str]) -> ShardTable:
    """Return the table of the store that is to grow; OptionError or StoreNotFoundError if it cannot."""
    if is_mongo(destination):
        raise OptionError(f"{_ADDS}, not to a store in MongoDB: {_JOIN}")
    target, name = target_of(destination), os.fspath(destination)
    if not os.path.lexists(target):
        raise StoreNotFoundError(f"{_ADDS}, and nothing is at {name}: leave it out, and give a number of shards")
    if not (target / MANIFEST_FILE).is_file():
        shards = f"dbloader convert {name} NEW.lmdb --shards 8 makes a folder of shards of it"
        raise OptionError(f"{_ADDS}, and {name} is something else: {_JOIN}" + f"; or {shards}" * target.is_file())
    return ShardTable.decode((target / MANIFEST_FILE).read_bytes(), name)


def join_classes(base: Manifest, found: Source, place: str) -> Joined:
    """Return the classes of a store and a source together; OptionError if their labels contradict each other."""
    if not found.classes:
        return Joined([*base.classes], [] if base.classes else None)  # labels of boxes are not those of its classes
    if (base.labelled or LABELS in base.fields) and not base.classes:
        raise OptionError(
            f"the labels of {place} are integers, those of {found.place} have class names: give the new images "
            "integers by a listing (--list)"
        )
    for names, where in ((base.classes, place), (found.classes, found.place)):
        if len({*names}) < len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise OptionError(
                f"{where}: two of its classes are called {twice!r}, so they cannot be told by their names"
            )
    classes = [*dict.fromkeys((*base.classes, *found.classes))]
    number = {name: label for label, name in enumerate(classes)}
    labels = [number[name] for name in found.classes]
    return Joined(classes, None if labels == [*range(len(labels))] else labels)


def check_agreement(base: Manifest, found: Source, files: FileList, place: str) -> None:
    """Raise SourceError or OptionError if a source has integer labels or file fields that the store contradicts."""
    if base.classes and not found.classes:
        labelled = (files[position] for position in range(len(files)))
        if item := next((item for item in labelled if getattr(item, "label", None) is not None), None):
            raise SourceError(
                f"{found.place}: the label of {item.name} is an integer, those of {place} have class names: give the "
                "new images the names of their classes, by a listing (--list)"
            )
    _check_fields(base, found.file_fields, base.fields)


def _check_fields(base: Manifest, file_fields: Sequence[str], fields: Any) -> None:
    for name in {*base.file_fields} ^ {*file_fields}:
        if name in fields:
            raise OptionError(
                f"the field {name!r} has image files in the store or in the new images, and other values in the "
                "other: give it another name in the new images"
            )


def add_shards(plan: Plan, receipts: Sequence[Receipt], target: Path) -> tuple[Manifest, Manifest]:
    """Add the shards of a plan to the store that it was made for; return the manifests before and now.

    Raises:
        StoreLockedError: Another process publishes there now.
        StoreExistsError: The store is another one than when the plan was made.
        StoreError: A shard is damaged, or the store cannot be written.
    """
    index = f"index-{plan.id[:16]}.lmdb"
    with replacing(target) as data:
        table = ShardTable.decode(data, str(target))
        if table.index_file == index:  # a publisher was killed before it removed the plan
            before = ShardTable.decode((target / kept_manifest(plan.grows)).read_bytes(), str(target)).manifest
            manifest = table.manifest
        elif table.index_file != plan.grows:
            raise StoreExistsError(
                f"{target} is another store than the one that was to grow: somebody has published there meanwhile. "
                "Plan again with append and overwrite (dbloader plan --append --overwrite)"
            )
        else:
            before = table.manifest
            manifest = _grow(plan, receipts, target, table, index)
    with suppress(OSError):  # the store is in place
        remove_plan(plan.folder)
    return before, manifest


def _grow(plan: Plan, receipts: Sequence[Receipt], target: Path, table: ShardTable, index: str) -> Manifest:
    base, new = table.manifest, plan.described
    file_fields = new.get(FILE_FIELDS, [])
    for receipt in receipts:
        with LMDBStore(plan.folder / SHARD_FOLDER / receipt.shard) as shard:
            _check_fields(base, file_fields, shard.manifest.fields)
    for receipt in receipts:
        path = f"{SHARD_FOLDER}/{receipt.shard}"
        give_second_name(plan.folder / path, target / path)
    source = common_values([base.source, new])
    source.pop("listing", None)
    places = dict.fromkeys([*str(base.source.get("path", "")).split(", "), new["path"]])
    source["path"] = ", ".join(filter(None, places))
    if names := [*dict.fromkeys((*base.file_fields, *file_fields))]:
        source[FILE_FIELDS] = names
    return publish_shards(
        target,
        [receipt.shard for receipt in receipts],
        [receipt.digest for receipt in receipts],
        classes=plan.classes,
        source=source,
        before=table,
        index=index,
    )
