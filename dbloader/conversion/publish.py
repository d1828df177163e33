"""Publish a conversion in parts: check that every part is there, and make a store of all of them, at once."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from dbloader._describe import counted, size
from dbloader.conversion.grow import add_shards
from dbloader.conversion.part import read_receipt, receipt_path
from dbloader.conversion.plan import PLAN_FILES, RECEIPT_FOLDER, Plan, remove_plan, target_of
from dbloader.conversion.report import FILE_COUNTS, Report, image_warnings, nothing_stored, repeat_warning, write_report
from dbloader.errors import ConversionError, DamagedStoreError, OptionError, StoreError, StoreExistsError
from dbloader.stores.lmdb.errors import translate_refusal
from dbloader.stores.lmdb.partial import sync_folder
from dbloader.stores.lmdb.publish_shards import (
    check_target,
    give_second_name,
    publish_shards,
    put_manifest,
    replacing,
)
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, ShardTable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dbloader.conversion.part import Receipt
    from dbloader.records.manifest import Manifest


class Parts(NamedTuple):
    """How far the parts of a conversion are.

    Attributes:
        plan: The plan.
        receipts: Of the parts that are made, in order.
        missing: Numbers of the others, ascending.
    """

    plan: Plan
    receipts: list[Receipt]
    missing: list[int]


def list_parts(destination: str | os.PathLike[str]) -> Parts:
    """Return which parts of a planned conversion are made.

    Each receipt is opened by its name: the listing of a folder on a network may be old.

    Raises:
        StoreNotFoundError: The destination has no plan.
        DamagedStoreError: A receipt is damaged, or of another plan.
    """
    plan = Plan.open(destination)
    for name in (RECEIPT_FOLDER, SHARD_FOLDER):
        with suppress(OSError), os.scandir(plan.folder / name):
            pass  # NFS may remember for a while that a file was not there, until its folder is opened again
    receipts = [read_receipt(plan, part) for part in range(plan.parts)]
    missing = [part for part, receipt in enumerate(receipts) if receipt is None]
    return Parts(plan, [receipt for receipt in receipts if receipt is not None], missing)


def publish(destination: str | os.PathLike[str], *, overwrite: bool = False) -> Report:
    """Make a store of the parts of a conversion, in one step, or refuse.

    Args:
        destination: Place of the store.
        overwrite: Replace the sharded store that is there.

    Raises:
        StoreNotFoundError: The destination has no plan.
        ConversionError: Parts are missing; or no file could be stored.
        StoreExistsError: Something is at the destination already.
        StoreError: A part is damaged, or the store cannot be written.
    """
    started = time.monotonic()
    plan, receipts, missing = list_parts(destination)
    if missing:
        raise ConversionError(
            f"{len(missing):,} of {plan.parts:,} parts are missing: {slurm_ranges(missing)}; make them with "
            f"dbloader part {os.fspath(destination)} NUMBER"
        )
    plan.check_frozen()
    target = target_of(destination)
    if plan.grows and overwrite:
        raise OptionError(f"the plan adds to the store at {target}: leave overwrite (--overwrite) out")
    replaces = check_target(target, overwrite=overwrite or bool(plan.grows))
    for receipt in receipts:
        if receipt.records + receipt.rejected != (files := plan.part_length(receipt.part)):
            raise DamagedStoreError(
                f"part {receipt.part} has {receipt.records:,} records and {receipt.rejected:,} rejected files, not "
                f"{files:,}; remove {receipt_path(plan, receipt.part)}, and make the part again"
            )
    if not any(receipt.records for receipt in receipts):
        first = next((receipt.first_rejected for receipt in receipts if receipt.first_rejected), "")
        raise ConversionError(nothing_stored(plan.files, first))
    try:
        if plan.grows:
            before, manifest = add_shards(plan, receipts, target)
        else:
            before, manifest = None, _make(plan, receipts, target, replaces=replaces)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise translate_refusal(error, str(target)) from error
    outcome = Counter(manifest.outcome)
    outcome.subtract({} if before is None else before.outcome)
    new = replace(manifest, outcome=dict(outcome))
    report_file, problem = write_report(
        destination, target.with_name(f"{target.name}.report.jsonl"), manifest.events, replaces=replaces
    )
    return Report(
        place=os.fspath(destination),
        digest=manifest.digest,
        records=manifest.length,
        files=plan.files,
        **{name: outcome[name] for name in FILE_COUNTS},
        bytes_read=sum(receipt.bytes_read for receipt in receipts),
        image_bytes=manifest.image_bytes,
        seconds=time.monotonic() - started,
        warnings=(
            *plan.warnings,
            *repeat_warning(plan.described["path"], sum(receipt.repeats for receipt in receipts)),
            *image_warnings(new, raw=plan.converter().images.raw),
            *problem,
            *_unnamed_warning(target),
        ),
        skipped=plan.skipped,
        hidden=plan.hidden,
        report_file=report_file,
        earlier_events=0 if before is None else before.events,
    )


def _make(plan: Plan, receipts: Sequence[Receipt], target: Path, *, replaces: bool) -> Manifest:
    """Make a store of the parts of a plan, at its place."""
    try:
        manifest = publish_shards(
            plan.folder,
            [receipt.shard for receipt in receipts],
            [receipt.digest for receipt in receipts],
            classes=plan.classes,
            source=plan.described,
        )
        if replaces:
            move_into(plan.folder, target)
        else:
            plan.folder.rename(target)
    except (OSError, StoreError) as error:
        if (plan.folder / RECEIPT_FOLDER).exists():
            raise
        raise StoreExistsError(f"{target} was published by another process meanwhile") from error
    if not replaces:
        with suppress(OSError):  # the store is in place
            sync_folder(target.parent)
            _remove_plan_in(target)
    return manifest


def move_into(folder: Path, target: Path) -> None:
    """Replace the store at a place, in one step: by the manifest, once all it names is there."""
    data = (folder / MANIFEST_FILE).read_bytes()  # once: another process may publish the same parts
    table = ShardTable.decode(data, str(folder))
    before: list[str] = []
    with replacing(target) as old:
        with suppress(StoreError):  # a damaged store is replaced too
            there = ShardTable.decode(old, str(target))
            before = [*files_of(there), *there.older_files]
        (target / SHARD_FOLDER).mkdir(exist_ok=True)
        for name in files_of(table):
            give_second_name(folder / name, target / name)
        put_manifest(target, data, table.index_file)
    with suppress(OSError):  # the store is in place
        # Only what the older store had: other files may be those of a process that publishes too.
        for name in {*before} - {*files_of(table)}:
            (target / name).unlink(missing_ok=True)
        remove_plan(folder)


def files_of(table: ShardTable) -> list[str]:
    """Return the files of a store, below its folder: the shards, then the index."""
    return [*(f"{SHARD_FOLDER}/{shard.name}" for shard in table.shards), table.index_file]


def _remove_plan_in(target: Path) -> None:
    """Remove the plan and its receipts, and the shards of attempts that were not taken."""
    with replacing(target):  # so that nobody adds shards meanwhile
        for name in PLAN_FILES:
            (target / name).unlink(missing_ok=True)
        shutil.rmtree(target / RECEIPT_FOLDER, ignore_errors=True)
        for path in unnamed_files(target):
            path.unlink(missing_ok=True)


def unnamed_files(target: Path) -> list[Path]:
    """Return the shards and indices in the folder of a store that its manifest does not name."""
    table = ShardTable.decode((target / MANIFEST_FILE).read_bytes(), str(target))
    named = {*files_of(table), *table.older_files}
    found = sorted((*target.glob(f"{SHARD_FOLDER}/*"), *target.glob("index-*")))
    return [path for path in found if str(path.relative_to(target)) not in named]


def _unnamed_warning(target: Path) -> list[str]:
    """Return a warning about files that publishers which were killed have left in a store, if there are any."""
    with suppress(OSError, StoreError):  # the store is in place
        if left := unnamed_files(target):
            nbytes = size(sum(path.stat().st_size for path in left))
            what = f"{counted(len(left), 'file')} ({nbytes}) that its manifest does not name"
            names = ", ".join(str(path.relative_to(target)) for path in left[:5])
            return [
                f"{target} has {what}: {names}{', …' * (len(left) > 5)}; a publisher that was killed has left them, "
                "or one is at work: if none is, remove them"
            ]
    return []


def slurm_ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as Slurm's ``--array`` takes them: "3,17,40-42"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
