"""Publish a conversion in parts: check that all parts are made, and make one store of them in one step."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dbloader._describe import counted
from dbloader.conversion.parts.part import list_parts, missing_parts, slurm_ranges
from dbloader.conversion.parts.plan import LIST_FOLDER, PLAN_FILE, RECEIPT_FOLDER, Plan, remove_plan, target_of
from dbloader.conversion.report import finish_report, image_warnings, nothing_stored
from dbloader.conversion.stored_records import common_source
from dbloader.errors import (
    ConversionError,
    DamagedStoreError,
    OptionError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
)
from dbloader.stores.lmdb.errors import refusals
from dbloader.stores.lmdb.partial import sync_folder
from dbloader.stores.lmdb.publish_shards import (
    check_base,
    check_target,
    index_shards,
    move_into,
    put_manifest,
    unnamed_warning,
)
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, ShardTable, is_sharded
from dbloader.stores.lmdb.store import LMDBStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dbloader.conversion.parts.part import PartReceipt
    from dbloader.conversion.report import Report
    from dbloader.records.manifest import Manifest


def publish(destination: str | os.PathLike[str], *, overwrite: bool = False) -> Report:
    """Make one store of the parts of a conversion, in one step.

    If the store was published before, for example by an earlier run of a job, the report has 0 files and a warning.

    Args:
        destination: Place of the store.
        overwrite: Replace the sharded store that is there.

    Raises:
        StoreNotFoundError: The destination has neither a plan nor a sharded store.
        ConversionError: Parts are missing; or no file could be stored.
        StoreExistsError: The destination is taken.
        StoreError: A part is damaged, or the store cannot be written.
    """
    started, target = time.monotonic(), target_of(destination)

    def report(manifest: Manifest, facts: dict[str, Any], *, replaces: bool = True) -> Report:
        path, place = target.with_name(f"{target.name}.report.jsonl"), os.fspath(destination)
        return finish_report(manifest, destination, path, place=place, started=started, replaces=replaces, **facts)

    try:
        plan, receipts, missing, _ = list_parts(destination)
        if missing:
            Plan.open(destination)  # raises if another process has published meanwhile, and removed the receipts
    except StoreNotFoundError:
        if not is_sharded(target):
            raise
        if (target / PLAN_FILE).is_file():  # a publisher was killed before it removed the plan
            _remove_files(target, {PLAN_FILE})
        there = ShardTable.read(target).manifest
        return report(there, published_before(there))
    check_parts(plan, receipts, destination, overwrite=overwrite)
    if table := _published_of(target, receipts):  # a publisher was killed before it removed the plan
        with suppress(OSError):  # another publisher removes it too
            remove_plan(plan.folder)
        return report(table.manifest, published_before(table.manifest))
    replaces = check_target(target, overwrite=overwrite or bool(plan.grows))
    try:
        with refusals(str(target)):
            base = ShardTable.read(target) if plan.grows else None
            manifest = _make(plan, receipts, target, base, replaces=replaces)
    except StoreError:
        if plan.folder.exists() or not (table := _published_of(target, receipts)):
            raise
        return report(table.manifest, published_before(table.manifest))  # another process has published meanwhile
    facts = published_now(plan, receipts, manifest, base and base.manifest)
    facts["warnings"] += unnamed_warning(target)
    return report(manifest, facts, replaces=replaces)


def check_parts(
    plan: Plan, receipts: Sequence[PartReceipt], destination: str | os.PathLike[str], *, overwrite: bool
) -> None:
    """Raise an error unless all parts are made, no file is missing in them, and at least one file was stored."""
    if missing := missing_parts(plan, receipts):
        raise ConversionError(
            f"only {len(receipts):,} of {plan.parts:,} parts are made; missing {slurm_ranges(missing)}: make them with "
            f"dbloader part {os.fspath(destination)} NUMBER"
        )
    for receipt in receipts:
        if receipt.records + receipt.rejected != (files := plan.part_length(receipt.part)):
            raise DamagedStoreError(
                f"part {receipt.part} has {counted(receipt.records, 'record')} and "
                f"{counted(receipt.rejected, 'rejected file')}, not {files:,}; remove "
                f"{plan.where}/{plan.receipt_name(receipt.part)}, and make the part again"
            )
    if not any(receipt.records for receipt in receipts):
        first = next((receipt.first_rejected for receipt in receipts if receipt.first_rejected), "")
        raise ConversionError(nothing_stored(plan.files, first))
    if plan.grows and overwrite:
        raise OptionError(f"the plan adds to the store at {os.fspath(destination)}: leave overwrite (--overwrite) out")


def _published_of(target: Path, receipts: Sequence[PartReceipt]) -> ShardTable | None:
    """Return the shard table of the store at a path if it has the shards of these receipts, else None."""
    with suppress(OSError, StoreError):
        table = ShardTable.read(target)
        if has_shards(table, receipts):
            return table
    return None


def has_shards(table: ShardTable, receipts: Sequence[PartReceipt]) -> bool:
    """Return whether a store has shards of these receipts."""
    made = {(receipt.shard, receipt.digest) for receipt in receipts}
    return bool(made & {(shard.name, shard.digest) for shard in table.shards})


def published_before(manifest: Manifest) -> dict[str, Any]:
    """Return the facts for the report of a store that was published before."""
    rejected = manifest.outcome.get("rejected", 0)
    more = f"; {counted(rejected, 'file')} had been rejected" if rejected else ""
    warning = f"no plan is left: the store was published already, at {manifest.created}{more}"
    return {"warnings": [warning], "outcome": {}, "files": 0}


def published_now(
    plan: Plan, receipts: Sequence[PartReceipt], manifest: Manifest, base: Manifest | None
) -> dict[str, Any]:
    """Return the facts for the report of a store that is published now. ``base`` is its manifest before an append."""
    outcome = Counter(manifest.outcome) - Counter({} if base is None else base.outcome)
    facts = dict(plan.left_out)
    warnings = [*facts.pop("warnings"), *image_warnings(outcome, manifest.depths, raw=bool(plan.described["raw"]))]
    return {
        "warnings": warnings,
        "outcome": outcome,
        "files": plan.files,
        "bytes_read": sum(receipt.bytes_read for receipt in receipts),
        "earlier_events": 0 if base is None else base.events,
        **facts,
    }


def _make(
    plan: Plan, receipts: Sequence[PartReceipt], target: Path, base: ShardTable | None, *, replaces: bool
) -> Manifest:
    """Make a store of the parts of a plan, at its target."""
    shards = [receipt.shard for receipt in receipts]
    # The options depend only on the plan. Another process may publish it now, and must write the same index.
    options: dict[str, Any] = {"classes": plan.classes, "source": plan.described, "salt": int(plan.token, 16)}
    if base is not None:
        check_base(target, base, plan.grows)
        manifests = [base.manifest]
        for name in shards:
            with LMDBStore(plan.folder / SHARD_FOLDER / name) as shard:
                manifests.append(shard.manifest)
        options["source"] = joined_source(manifests)
        # The plan's id is in the name of the index, so a repeated call replaces the file.
        options |= {"grows": (target, base), "index": f"index-{plan.id[:16]}.lmdb"}
    table = index_shards(plan.folder, shards, [receipt.digest for receipt in receipts], **options)
    if replaces:
        move_into(plan.folder, table, target)
        with suppress(OSError):  # the store is in place
            remove_plan(plan.folder)
        return table.manifest
    if Plan.open(target) != plan:  # the folder of another plan has other parts
        raise StoreExistsError(f"{plan.folder} was planned again meanwhile: make its parts, then publish them")
    put_manifest(plan.folder, table)
    left = {str(path.relative_to(plan.folder)) for path in plan.folder.rglob("*") if path.is_file()}
    plan.folder.rename(target)
    with suppress(OSError):  # the store is in place
        sync_folder(target.parent)
        table = ShardTable.read(target)  # another process may have published at the same time
        _remove_files(target, left - {MANIFEST_FILE, *table.files})
    return table.manifest


def joined_source(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Return the ``source`` of a store with new shards, given the manifests of the store and the shards."""
    places = [*str(manifests[0].source.get("path", "")).split(", "), manifests[1].source["path"]]
    return {**common_source(manifests), "path": ", ".join(filter(None, dict.fromkeys(places)))}


def _remove_files(target: Path, names: set[str]) -> None:
    """Remove files that only the plan needed from the folder of a store, the plan last."""
    for folder in (LIST_FOLDER, RECEIPT_FOLDER):
        shutil.rmtree(target / folder, ignore_errors=True)
    with suppress(OSError):
        for name in sorted(names, key=lambda name: name == PLAN_FILE):
            (target / name).unlink(missing_ok=True)
