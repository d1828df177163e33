"""Conversion in parts to object storage, so the machines need no file system in common.

``PLACE.partial/`` contains the plan (``plan.bson``), the list of all files (``files/``), and for each finished part a
receipt and the index of its shard (``parts/``). The shard itself goes to ``PLACE/shards/``, where the store needs it.
No program uses a shard before a receipt names it. ``publish_in_bucket`` joins the indices and puts ``manifest.bson`` by
a conditional request, so one of several publishers wins.
"""

from __future__ import annotations

import posixpath
import secrets
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader.conversion.file_list import FileList
from dbloader.conversion.parts.make_plan import checked_same, write_plan
from dbloader.conversion.parts.part import (
    check_part,
    decode_receipt,
    encode_receipt,
    make_shard,
    replaced_plan,
    scratch_folder,
    state_of,
)
from dbloader.conversion.parts.plan import LIST_FOLDER, PLAN_FILE, RECEIPT_FOLDER, Plan, list_name, no_plan
from dbloader.conversion.parts.publish import check_parts, has_shards, joined_source, published_before, published_now
from dbloader.conversion.report import finish_report
from dbloader.errors import ConversionError, StoreExistsError, StoreNotFoundError
from dbloader.remote.bucket import Bucket
from dbloader.stores.lmdb.errors import refusals
from dbloader.stores.lmdb.keys import PARTIAL
from dbloader.stores.lmdb.objects import list_files, open_target, put_table, read_table
from dbloader.stores.lmdb.publish_shards import check_base, index_shards, put_manifest, write_index
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, Shard, ShardTable, kept_manifest
from dbloader.stores.lmdb.store import LMDBStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.conversion.parts.part import PartReceipt, Parts
    from dbloader.conversion.report import Report
    from dbloader.conversion.settings import Settings
    from dbloader.remote.bucket import Item

_AT_ONCE = 8  # receipts that are read at once
KEEP_HOURS = 24.0


def plan_in_bucket(
    settings: Settings,
    place: str,
    shards: int,
    *,
    append: bool,
    overwrite: bool,
    progress: Callable[[int], object],
) -> Plan:
    """Put a plan into object storage; the arguments and errors are as in `make_plan`."""
    target, bucket = _open(place)
    base = _read_base(target) if append else None
    there = bucket.head(PLAN_FILE)
    with tempfile.TemporaryDirectory(prefix="dbloader-") as local, refusals(local):
        aside = Path(local) / "plan"
        plan = replace(write_plan(aside, settings, place, shards, base, progress), where=bucket.place)
        if there is not None and not overwrite:
            return checked_same(_read_plan(place, bucket), plan.id)
        bucket.put_file(list_name(plan.token), aside / list_name(plan.token))
        bucket.put_if(PLAN_FILE, (aside / PLAN_FILE).read_bytes(), there)
    if there is not None:
        bucket.delete([item.key for item in _plan_files(bucket) if plan.token not in item.key])
    return plan


def convert_part_in_bucket(place: str, part: int, *, workers: int = 1, scratch: str | None = None) -> PartReceipt:
    """Make a part whose plan is in object storage; the arguments and errors are as in `convert_part`."""
    target, bucket = _open(place)
    plan = _read_plan(place, bucket)
    part, receipt_key = check_part(plan, part), plan.receipt_name(part)
    there = bucket.head(receipt_key)
    if there is not None:
        done, _ = _read_receipt(bucket, plan, part)
        stored = target.head(f"{SHARD_FOLDER}/{done.shard}")
        if stored is not None and stored.size == done.nbytes:
            return done
    with refusals(f"part {part} of {place}"), scratch_folder(scratch) as folder, ExitStack() as undo:
        (folder / SHARD_FOLDER).mkdir()
        (folder / "empty").touch()
        bucket.put_file(plan.attempt_name(part), folder / "empty")
        undo.callback(bucket.delete, [plan.attempt_name(part)])
        # The token in the name of a shard shows which plan the shard belongs to.
        shard = folder / SHARD_FOLDER / f"{part:05}-{plan.token}{secrets.token_hex(4)}.lmdb"
        begin, end = plan.part_span(part)
        with (folder / LIST_FOLDER).open("x+b") as data:
            data.write(bucket.get(list_name(plan.token), span=(begin, end)) if begin < end else b"")
            data.flush()
            receipt = make_shard(plan, part, FileList.of_span(data, 0, end - begin), shard, workers)
        table = index_shards(folder, [shard.name], [receipt.digest], classes=plan.classes, source=plan.described)
        shard_key, index_key = f"{SHARD_FOLDER}/{shard.name}", _index_key(receipt)
        target.put_file(shard_key, shard)
        bucket.put_file(index_key, folder / table.index_file)
    try:
        bucket.put_if(receipt_key, encode_receipt(receipt, table.encode()), there)
    except StoreExistsError:  # another attempt was first
        target.delete([shard_key])
        bucket.delete([index_key])
        return _read_receipt(bucket, plan, part)[0]
    now = _token(bucket)
    if now != plan.token and shard_key not in _named(target):
        target.delete([shard_key])
        bucket.delete([receipt_key, index_key])
        if now:
            raise replaced_plan(plan, part)
    return receipt


def list_parts_in_bucket(place: str) -> Parts:
    """Return which parts of a plan in object storage are made; errors are as in `list_parts`."""
    target, bucket = _open(place)
    plan = _read_plan(place, bucket)
    written = [(posixpath.basename(item.key), item.modified.timestamp()) for item in bucket.items(RECEIPT_FOLDER)]
    return state_of(plan, [receipt for receipt, _ in _read_receipts(target, bucket, plan)], written)


def publish_in_bucket(place: str, *, overwrite: bool = False, keep_hours: float = KEEP_HOURS) -> Report:
    """Make one store of the parts of a plan in object storage; the arguments and errors are as in `publish`.

    The indices of the parts are fetched, not the shards. Objects are removed only after no manifest has named them for
    ``keep_hours``, because programs may still read a replaced store.
    """
    started = time.monotonic()
    target, bucket = _open(place)
    with tempfile.TemporaryDirectory(prefix="dbloader-") as local, refusals(local):
        folder = Path(local)

        def report(table: ShardTable, facts: dict[str, Any]) -> Report:
            """Return the report of the published store. Its events go to a file in the working directory."""
            if table.manifest.events:
                _fetch_index(target, table.index_file, table, folder / "report")
            path = Path(f"{posixpath.basename(target.place)}.report.jsonl")
            facts |= {"place": target.place, "started": started, "replaces": True}
            return finish_report(table.manifest, folder / "report", path, **facts)

        try:
            plan = _read_plan(place, bucket)
        except StoreNotFoundError:
            if target.head(MANIFEST_FILE) is None:
                raise
            there = read_table(target)
            _remove_rest(target, bucket, there, keep_hours)
            return report(there, published_before(there.manifest))
        replaces = target.head(MANIFEST_FILE)
        before = replaces and ShardTable.decode(target.get(MANIFEST_FILE, replaces.etag), target.place)
        made = _read_receipts(target, bucket, plan)
        receipts = [receipt for receipt, _ in made]
        if before is not None and has_shards(before, receipts):  # a publisher was killed before it removed the plan
            _remove_rest(target, bucket, before, keep_hours)
            return report(before, published_before(before.manifest))
        check_parts(plan, receipts, place, overwrite=overwrite)
        base = _check_base(target, plan, before, overwrite=overwrite)
        index = f"index-{plan.token}{secrets.token_hex(4)}.lmdb"
        table = _join(target, bucket, plan, made, base, folder / "new", index)
        target.put_file(index, folder / "new" / index)
        if before is not None:
            replaced = folder / "replaced"
            replaced.write_bytes(before.encode())
            target.put_file(kept_manifest(before.index_file), replaced)
        if _token(bucket) != plan.token and not (_named(target) & {*table.files}):
            target.delete([index])
            raise StoreExistsError(f"{bucket.place} was planned again meanwhile: make its parts, then publish them")
        try:
            put_table(target, table, replaces, [index])
        except StoreExistsError:
            other = read_table(target)
            if has_shards(other, receipts):  # another process has published the same parts
                return report(other, published_before(other.manifest))
            raise
        _remove_rest(target, bucket, table, keep_hours)
        return report(table, published_now(plan, receipts, table.manifest, base.manifest if base else None))


# ---- The objects of a plan


def _open(place: str) -> tuple[Bucket, Bucket]:
    """Return two buckets: the place of a store, and the place of its plan."""
    target = open_target(place)
    return target, Bucket(f"{target.place}{PARTIAL}")


def _read_plan(place: str, bucket: Bucket) -> Plan:
    try:
        return Plan.decode(bucket.get(PLAN_FILE), bucket.place)
    except StoreNotFoundError:
        raise no_plan(place, bucket.place) from None


def _token(bucket: Bucket) -> str:
    """Return the token of the plan that is there now; "" if there is none."""
    with suppress(StoreNotFoundError):
        return Plan.decode(bucket.get(PLAN_FILE), bucket.place).token
    return ""


def _index_key(receipt: PartReceipt) -> str:
    return f"{RECEIPT_FOLDER}/{receipt.shard}"


def _plan_files(bucket: Bucket) -> list[Item]:
    return [*bucket.items(LIST_FOLDER), *bucket.items(RECEIPT_FOLDER)]


def _read_receipt(bucket: Bucket, plan: Plan, part: int) -> tuple[PartReceipt, ShardTable]:
    """Return the receipt of a part, and the table of a store with only this shard."""
    receipt, table = decode_receipt(plan, part, bucket.get(plan.receipt_name(part)))
    return receipt, ShardTable.decode(table, bucket.place)


def _read_receipts(target: Bucket, bucket: Bucket, plan: Plan) -> list[tuple[PartReceipt, ShardTable]]:
    """Return the receipts of all parts whose shards are there, in order."""
    keys = {item.key for item in bucket.items(RECEIPT_FOLDER)}
    sizes = {item.key: item.size for item in target.items(SHARD_FOLDER)}
    parts = [part for part in range(plan.parts) if plan.receipt_name(part) in keys]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dbloader-parts") as threads:
        made = [*threads.map(partial(_read_receipt, bucket, plan), parts)]
    return [
        (receipt, table) for receipt, table in made if sizes.get(f"{SHARD_FOLDER}/{receipt.shard}") == receipt.nbytes
    ]


def _remove_rest(target: Bucket, bucket: Bucket, table: ShardTable, keep_hours: float) -> None:
    """Remove the plan of a published store, files of killed attempts, and old objects that the store does not use.

    A kept manifest is written when its store is replaced. Until it is ``keep_hours`` old, the files in it stay too.
    """
    limit, token = datetime.now(UTC) - timedelta(hours=keep_hours), f"{table.manifest.salt:08x}"

    def is_left(item: Item) -> bool:
        return f"-{token}" in item.key or item.modified < limit

    if _token(bucket) == token:  # otherwise it is a newer plan
        bucket.delete([PLAN_FILE])  # first: a plan without its receipts would ask for all parts again
    bucket.delete([item.key for item in _plan_files(bucket) if is_left(item)])
    files, used = list_files(target), {*table.files}
    for key, item in files.items():
        if key.endswith(MANIFEST_FILE) and item.modified >= limit:
            with suppress(StoreNotFoundError):  # another process has removed it
                used |= {*ShardTable.decode(target.get(key), target.place).files}
    target.delete([key for key, item in files.items() if key not in used and is_left(item)])


# ---- The store


def _read_base(target: Bucket) -> ShardTable:
    if target.head(MANIFEST_FILE) is None:
        raise StoreNotFoundError(
            f"append (--append) adds to a store, and none is at {target.place}: shards=8 (--shards 8) without append "
            "makes one"
        )
    return read_table(target)


def _named(target: Bucket) -> set[str]:
    """Return the keys that the manifest of the store names; none without a store."""
    with suppress(StoreNotFoundError):
        return {*ShardTable.decode(target.get(MANIFEST_FILE), target.place).files}
    return set()


def _check_base(target: Bucket, plan: Plan, before: ShardTable | None, *, overwrite: bool) -> ShardTable | None:
    """Return the store that the plan adds to, None without one; raise an error unless the plan may be published."""
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
    """Write the index of a new store of the parts, after the records of ``base``, and return the store's table."""
    manifests = [table.manifest for _, table in made]
    source = plan.described if base is None else joined_source([base.manifest, *manifests])
    folder.mkdir()

    def stores() -> Iterator[LMDBStore]:
        if base is not None:
            yield _fetch_index(target, base.index_file, base, folder / "base")
        for receipt, table in made:
            yield _fetch_index(bucket, _index_key(receipt), table, folder / f"{receipt.part:05}")

    facts: dict[str, Any] = {"classes": plan.classes, "source": source, "created": None}
    manifest = write_index(folder / index, stores(), target.place, salt=int(plan.token, 16), **facts)
    shards = [Shard(receipt.shard, receipt.records, receipt.nbytes, receipt.digest) for receipt, _ in made]
    table = ShardTable(manifest, index, [*(base.shards if base else ()), *shards])
    if sum(shard.length for shard in table.shards) != manifest.length:
        raise ConversionError(
            f"{bucket.place}: the receipts and indices of the parts disagree: plan again (--overwrite)"
        )
    return table


def _fetch_index(bucket: Bucket, key: str, table: ShardTable, folder: Path) -> LMDBStore:
    """Return a store without its shards. Only its columns and events can be read."""
    (folder / SHARD_FOLDER).mkdir(parents=True)
    bucket.fetch(key, folder / table.index_file)
    put_manifest(folder, table)
    return LMDBStore(folder)
