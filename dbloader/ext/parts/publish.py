"""Publish a conversion in parts: check that all parts are made, and make one store of them in one step.

On a disk, the shards move to the store, and a manifest is written last. In a bucket, the shards are uploaded already:
their index files are joined, and a conditional request writes ``manifest.bson``. If several processes publish, only one
of them succeeds with this request.
"""

from __future__ import annotations

import os
import posixpath
import secrets
import shutil
import tempfile
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader._describe import counted
from dbloader._places import is_remote
from dbloader.conversion.report import finish_report, nothing_stored
from dbloader.errors import (
    ConversionError,
    DamagedStoreError,
    OptionError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
)
from dbloader.ext.parts.known_records import repeated_warnings
from dbloader.ext.parts.part import (
    list_parts,
    missing_parts,
    named_files,
    read_receipts,
    slurm_ranges,
    token_of,
)
from dbloader.ext.parts.plan import (
    LIST_FOLDER,
    PLAN_FILE,
    RECEIPT_FOLDER,
    Plan,
    PlanFolder,
    remove_plan,
    target_of,
)
from dbloader.ext.publishing.common_source import common_source
from dbloader.ext.publishing.objects import list_files, open_target, put_table, read_table
from dbloader.ext.publishing.publish_shards import (
    check_base,
    check_target,
    index_shards,
    move_into,
    move_to,
    put_manifest,
    write_index,
)
from dbloader.ext.remote.bucket import Bucket
from dbloader.stores.lmdb.errors import refusals
from dbloader.stores.lmdb.files import unnamed_warning
from dbloader.stores.lmdb.growing_file import remove_report
from dbloader.stores.lmdb.keys import PARTIAL
from dbloader.stores.lmdb.shard_table import (
    MANIFEST_FILE,
    SHARD_FOLDER,
    Shard,
    ShardTable,
    is_sharded,
    kept_manifest,
)
from dbloader.stores.lmdb.store import LMDBStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dbloader.conversion.report import Report
    from dbloader.ext.parts.part import PartReceipt
    from dbloader.ext.remote.bucket import Item
    from dbloader.records.manifest import Manifest

_KEEP_HOURS = 24.0


def publish(destination: str | os.PathLike[str], *, overwrite: bool = False, keep_hours: float | None = None) -> Report:
    """Make one store of the parts of a conversion, in one step.

    If the store was published before, for example by an earlier run of a job, the report has 0 files and a warning.
    ``overwrite`` replaces the sharded store at the destination. In a bucket, the objects of a replaced store are kept
    for ``keep_hours`` (24 by default), because programs may still read them. A later ``publish`` removes them.
    """
    started = time.monotonic()
    if not is_remote(destination):
        if keep_hours is not None:
            raise OptionError("keep_hours (--keep-hours) is for stores in object storage: leave it out")
        path = target_of(destination)
        made, facts = _publish_on_disk(destination, path, overwrite=overwrite)
        facts = _published_before(made) if facts is None else facts
        report = path.with_name(f"{path.name}.report.jsonl")
        return finish_report(made, destination, report, place=os.fspath(destination), started=started, **facts)
    place = os.fspath(destination)
    target = open_target(place)
    report = Path(f"{posixpath.basename(target.place)}.report.jsonl")
    hours = _KEEP_HOURS if keep_hours is None else keep_hours
    with tempfile.TemporaryDirectory(prefix="dbloader-") as local, refusals(local):
        table, facts = _publish_in_bucket(place, target, Path(local), report, overwrite=overwrite, keep_hours=hours)
        facts = _published_before(table.manifest) if facts is None else facts
        folder = Path(local) / "report"
        if table.manifest.events:  # copy the lines of the report from the index file to the working directory
            _fetch_index(target, table.index_file, table, folder)
        return finish_report(table.manifest, folder, report, place=target.place, started=started, **facts)


def _check_parts(
    plan: Plan, receipts: Sequence[PartReceipt], destination: str | os.PathLike[str], *, overwrite: bool
) -> None:
    """Raise an error for a missing or incomplete part, or if no file was stored."""
    if missing := missing_parts(plan, receipts):
        raise ConversionError(
            f"only {len(receipts):,} of {plan.parts:,} parts are made; missing {slurm_ranges(missing)}: make them with "
            f"dbloader part {os.fspath(destination)} NUMBER"
        )
    for receipt in receipts:
        if receipt.records + receipt.unchanged + receipt.rejected != (files := plan.part_length(receipt.part)):
            raise DamagedStoreError(
                f"part {receipt.part} has {counted(receipt.records, 'record')} and "
                f"{counted(receipt.rejected, 'rejected file')}, but {counted(files, 'file')} in the plan; remove "
                f"{plan.where}/{plan.receipt_name(receipt.part)}, and make the part again"
            )
    if not any(receipt.records + receipt.unchanged for receipt in receipts):
        first = next((receipt.first_rejected for receipt in receipts if receipt.first_rejected), "")
        raise ConversionError(nothing_stored(plan.files, first))
    if plan.grows and overwrite:
        raise OptionError(f"the plan adds to the store at {os.fspath(destination)}: leave overwrite (--overwrite) out")


def _has_shards(table: ShardTable, receipts: Sequence[PartReceipt]) -> bool:
    made = {(receipt.shard, receipt.digest) for receipt in receipts}
    return bool(made & {(shard.name, shard.digest) for shard in table.shards})


def _published_before(manifest: Manifest) -> dict[str, Any]:
    """Return the facts for the report about a store that an earlier call has published."""
    rejected = manifest.outcome.get("rejected", 0)
    more = f"; {counted(rejected, 'file')} had been rejected" if rejected else ""
    warning = f"no plan is left: the store was published already, at {manifest.created}{more}"
    return {"warnings": [warning], "outcome": {}, "files": 0}


def _published_now(
    plan: Plan, receipts: Sequence[PartReceipt], manifest: Manifest, base: ShardTable | None
) -> dict[str, Any]:
    """Return the facts for the report of a new store. ``base`` is the store before an append, or None."""
    new = Counter(manifest.outcome) - Counter(base.manifest.outcome if base else {})
    new["rejected"] = sum(receipt.rejected for receipt in receipts)
    new["unchanged"] = sum(receipt.unchanged for receipt in receipts)
    return {
        "outcome": new,
        "raw": bool(plan.described["raw"]),
        "files": plan.files,
        "bytes_read": sum(receipt.bytes_read for receipt in receipts),
        "earlier_events": base.manifest.events if base else 0,
        **plan.left_out,
    }


def _joined_source(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Return ``source`` for the manifest after an append, from the manifests of the store and the new shards."""
    places = [*str(manifests[0].source.get("path", "")).split(", "), manifests[1].source["path"]]
    return {**common_source(manifests), "path": ", ".join(filter(None, dict.fromkeys(places)))}


# ---- On a disk


def _publish_on_disk(
    destination: str | os.PathLike[str], target: Path, *, overwrite: bool
) -> tuple[Manifest, dict[str, Any] | None]:
    """Return (manifest of the store, facts for the report). The facts are None if the store was published before."""
    try:
        plan, receipts, missing, _ = list_parts(destination)
        if missing:  # raises StoreNotFoundError if another process has published the parts and removed the plan
            Plan.read(PlanFolder(plan.folder))
    except StoreNotFoundError:
        if not is_sharded(target):
            raise
        if (target / PLAN_FILE).is_file():  # an earlier call was killed before it removed the plan
            _remove_files(target, {PLAN_FILE})
        return ShardTable.read(target).manifest, None
    _check_parts(plan, receipts, destination, overwrite=overwrite)
    if table := _published_of(target, receipts):  # an earlier call was killed before it removed the plan
        with suppress(OSError):  # another process may remove it at the same time
            remove_plan(plan.folder)
        return table.manifest, None
    replaces = check_target(target, overwrite=overwrite or bool(plan.grows))
    try:
        with refusals(str(target)):
            base = ShardTable.read(target) if plan.grows else None
            manifest = _make(plan, receipts, target, base, replaces=replaces)
    except StoreError:
        if plan.folder.exists() or not (table := _published_of(target, receipts)):
            raise
        return table.manifest, None  # another process has published meanwhile
    facts = _published_now(plan, receipts, manifest, base)
    repeated = [] if base is None else repeated_warnings(target, base.manifest.length)
    return manifest, {**facts, "warnings": [*facts["warnings"], *repeated, *unnamed_warning(target)]}


def _published_of(target: Path, receipts: Sequence[PartReceipt]) -> ShardTable | None:
    """Return the shard table of the store at a path, if the store has one of the receipts' shards; else None."""
    with suppress(OSError, StoreError):
        table = ShardTable.read(target)
        if _has_shards(table, receipts):
            return table
    return None


def _make(
    plan: Plan, receipts: Sequence[PartReceipt], target: Path, base: ShardTable | None, *, replaces: bool
) -> Manifest:
    """Make a store at ``target`` from the parts of a plan."""
    shards = [receipt.shard for receipt in receipts]
    # Another process may publish the same plan now. Both processes must write the same index file, so the options
    # depend only on the plan.
    options: dict[str, Any] = {"classes": plan.classes, "source": plan.described, "salt": int(plan.token, 16)}
    if base is not None:
        check_base(target, base, plan.grows)
        if not any(receipt.records or receipt.first_rejected for receipt in receipts):  # new_only: nothing is new
            with suppress(OSError):
                remove_plan(plan.folder)
            return base.manifest
        manifests = [base.manifest]
        for name in shards:
            with LMDBStore(plan.folder / SHARD_FOLDER / name) as shard:
                manifests.append(shard.manifest)
        options["source"] = _joined_source(manifests)
        # The plan's id is in the name of the index file, so a repeated call replaces the file.
        options |= {"grows": (target, base), "index": f"index-{plan.id[:16]}.lmdb"}
    table = index_shards(plan.folder, shards, [receipt.digest for receipt in receipts], **options)
    if replaces:
        move_into(plan.folder, table, target)
        with suppress(OSError):  # the store is published even if the plan remains
            remove_plan(plan.folder)
        return table.manifest
    if Plan.read(PlanFolder(plan.folder)) != plan:  # the folder may have a newer plan, with other parts
        raise StoreExistsError(f"{plan.folder} has a new plan: make the parts of the new plan, then publish")
    left = {str(path.relative_to(plan.folder)) for path in plan.folder.rglob("*") if path.is_file()}
    move_to(plan.folder, table, target)
    with suppress(OSError):  # the store is published even if files of the plan remain
        table = ShardTable.read(target)  # another process may have published at the same time
        _remove_files(target, left - {MANIFEST_FILE, *table.files})
    return table.manifest


def _remove_files(target: Path, names: set[str]) -> None:
    """Remove a plan's files from the folder of a store. Remove ``plan.bson`` last: it shows that files remain."""
    for folder in (LIST_FOLDER, RECEIPT_FOLDER):
        shutil.rmtree(target / folder, ignore_errors=True)
    with suppress(OSError):
        for name in sorted(names, key=lambda name: name == PLAN_FILE):
            (target / name).unlink(missing_ok=True)


# ---- In a bucket


def _publish_in_bucket(
    place: str, target: Bucket, folder: Path, report: Path, *, overwrite: bool, keep_hours: float
) -> tuple[ShardTable, dict[str, Any] | None]:
    """Return (table of the store, facts for the report). The facts are None if the store was published before.

    Fetch the index files of the parts, not the shards. ``folder`` is for local files. ``report`` is the report file,
    which is removed before a store is replaced.
    """
    bucket = Bucket(f"{target.place}{PARTIAL}")
    try:
        plan = Plan.read(bucket)
    except StoreNotFoundError:
        if target.head(MANIFEST_FILE) is None:
            raise
        there = read_table(target)
        _remove_rest(target, bucket, there, keep_hours)
        return there, None
    replaces = target.head(MANIFEST_FILE)
    before = replaces and ShardTable.decode(target.get(MANIFEST_FILE, replaces.etag), target.place)
    found = read_receipts(target, bucket, plan)
    made = [(receipt, ShardTable.decode(table, bucket.place)) for receipt, table in found]
    receipts = [receipt for receipt, _ in made]
    if before is not None and _has_shards(before, receipts):  # an earlier call was killed before it removed the plan
        _remove_rest(target, bucket, before, keep_hours)
        return before, None
    _check_parts(plan, receipts, place, overwrite=overwrite)
    base = _check_base(target, plan, before, overwrite=overwrite)
    index = f"index-{plan.token}{secrets.token_hex(4)}.lmdb"
    table = _join(target, bucket, plan, made, base, folder / "new", index)
    target.put_file(index, folder / "new" / index)
    if before is not None:
        replaced = folder / "replaced"
        replaced.write_bytes(before.encode())
        target.put_file(kept_manifest(before.index_file), replaced)
    if token_of(bucket) != plan.token and not (named_files(target) & {*table.files}):
        target.delete([index])
        raise StoreExistsError(f"{bucket.place} has a new plan: make the parts of the new plan, then publish")
    if before is not None:  # without an old store here, the report may be of a store in another bucket
        remove_report(report)
    try:
        put_table(target, table, replaces, [index])
    except StoreExistsError:
        other = read_table(target)
        if not _has_shards(other, receipts):
            raise
        return other, None  # another process has published the same parts
    _remove_rest(target, bucket, table, keep_hours)
    return table, _published_now(plan, receipts, table.manifest, base)


def _remove_rest(target: Bucket, bucket: Bucket, table: ShardTable, keep_hours: float) -> None:
    """Remove the plan of a published store, files of killed attempts, and old objects that the store does not use.

    A copy of a replaced store's manifest, and the files of the replaced store, are kept for ``keep_hours``.
    """
    limit, token = datetime.now(UTC) - timedelta(hours=keep_hours), f"{table.manifest.salt:08x}"

    def is_left(item: Item) -> bool:
        return f"-{token}" in item.key or item.modified < limit

    if token_of(bucket) == token:  # otherwise it is a newer plan
        bucket.delete([PLAN_FILE])  # the plan first, because a plan without its receipts would ask for all parts again
    bucket.delete([item.key for name in (LIST_FOLDER, RECEIPT_FOLDER) for item in bucket.items(name) if is_left(item)])
    files, used = list_files(target), {*table.files}
    for key, item in files.items():
        if key.endswith(MANIFEST_FILE) and item.modified >= limit:
            with suppress(StoreNotFoundError):  # another process has removed it
                used |= {*ShardTable.decode(target.get(key), target.place).files}
    target.delete([key for key, item in files.items() if key not in used and is_left(item)])


def _check_base(target: Bucket, plan: Plan, before: ShardTable | None, *, overwrite: bool) -> ShardTable | None:
    """Return the store that the plan appends to; None for a new store. Raise an error if publishing is not allowed."""
    if plan.grows:
        check_base(target.place, before, plan.grows)
        return before
    if before is not None and not overwrite:
        raise StoreExistsError(f"{target.place} exists already; overwrite (--overwrite) replaces it")
    return None


def _join(
    target: Bucket,
    bucket: Bucket,
    plan: Plan,
    made: Sequence[tuple[PartReceipt, ShardTable]],
    base: ShardTable | None,
    folder: Path,
    index: str,
) -> ShardTable:
    """Write the index file of a store: the records of ``base``, then of the parts. Return the store's table."""
    manifests = [table.manifest for _, table in made]
    source = plan.described if base is None else _joined_source([base.manifest, *manifests])
    folder.mkdir()

    def stores() -> Iterator[LMDBStore]:
        if base is not None:
            yield _fetch_index(target, base.index_file, base, folder / "base")
        for receipt, table in made:
            yield _fetch_index(bucket, f"{RECEIPT_FOLDER}/{receipt.shard}", table, folder / f"{receipt.part:05}")

    facts: dict[str, Any] = {"classes": plan.classes, "source": source, "created": None}
    manifest = write_index(folder / index, stores(), target.place, salt=int(plan.token, 16), **facts)
    shards = [Shard(receipt.shard, receipt.records, receipt.nbytes, receipt.digest) for receipt, _ in made]
    table = ShardTable(manifest, index, [*(base.shards if base else ()), *shards])
    if sum(shard.length for shard in table.shards) != manifest.length:
        raise ConversionError(
            f"{bucket.place}: the receipts and indices of the parts disagree: plan again (dbloader plan --overwrite)"
        )
    return table


def _fetch_index(bucket: Bucket, key: str, table: ShardTable, folder: Path) -> LMDBStore:
    """Fetch an index file into ``folder``. Return it as a store without shards, with readable columns and report."""
    (folder / SHARD_FOLDER).mkdir(parents=True)
    bucket.fetch(key, folder / table.index_file)
    put_manifest(folder, table)
    return LMDBStore(folder)
