"""Make a part of a planned conversion: first a shard, then a receipt with the shard's name. List finished parts."""

from __future__ import annotations

import fcntl
import os
import posixpath
import re
import secrets
import shutil
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dbloader._options import whole_number
from dbloader._parallel import return_large_blocks
from dbloader.conversion.convert_files import FileWriter
from dbloader.conversion.file_list import FileList
from dbloader.errors import ConversionError, DamagedStoreError, OptionError, StoreExistsError, StoreNotFoundError
from dbloader.ext.parts.known_records import KnownRecords
from dbloader.ext.parts.plan import MAKING, RECEIPT_FOLDER, Plan, list_name, open_places
from dbloader.ext.publishing.publish_shards import index_shards
from dbloader.ext.remote.bucket import Bucket
from dbloader.ext.sources.open import open_with
from dbloader.records.document import open_sealed, seal
from dbloader.stores.lmdb.errors import refusals
from dbloader.stores.lmdb.keys import PARTIAL
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, ShardTable
from dbloader.stores.lmdb.writer import LMDBWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dbloader.ext.parts.plan import PlanFolder

_AT_ONCE = 16  # number of receipts that are read at the same time
_PREFIX = "dbloader-part-"
_NEW_S = 60.0  # a younger scratch folder without a lock is kept, because its process may lock it soon


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReceipt:
    """The facts about a finished part. Without a receipt, a part is not finished.

    Attributes:
        plan: Id of the plan.
        part: Number of the part, from 0.
        shard: File name of the shard.
        digest: Content digest of the shard.
        nbytes: Size of the shard's file.
        records: Number of records in the shard.
        unchanged: Number of files left out because the store has an equal record (``new_only``).
        rejected: Number of files left out for another reason.
        first_rejected: Name of the first rejected file, and the reason; "" without a rejected file.
        bytes_read: Bytes of the files that were read.
        host: Name of the machine.
        seconds: Seconds in which the machine made the shard, without copying it to the store.
    """

    plan: str
    part: int
    shard: str
    digest: str
    nbytes: int
    records: int
    unchanged: int = 0  # receipts of earlier versions lack this field
    rejected: int
    first_rejected: str
    bytes_read: int
    host: str
    seconds: float


def convert_part(
    destination: str | os.PathLike[str],
    part: int,
    *,
    workers: int = 1,
    scratch: str | os.PathLike[str] | None = None,
) -> PartReceipt:
    """Make a part of a planned conversion, unless it is made already.

    ``workers`` threads make the shard in a local folder (``scratch``, or the system's ``TMPDIR``). The shard is then
    copied to its place. The receipt is written last, and no program uses a shard without a receipt. So you may kill a
    process that makes a part, or let several processes make the same part: all make the same records.
    """
    shards, files = open_places(destination)
    plan = Plan.read(files)
    part = whole_number("part", part, 0)
    if part >= plan.parts:
        raise OptionError(f"part must be 0 to {plan.parts - 1}, as in the plan {plan.where}, got {part}")
    receipt_key = plan.receipt_name(part)
    there = files.head(receipt_key)
    if there is not None and (done := read_receipt(shards, files, plan, part)):
        return done[0]
    with refusals(f"part {part} of {os.fspath(destination)}"), scratch_folder(scratch) as folder, ExitStack() as undo:
        (folder / SHARD_FOLDER).mkdir()
        (folder / "empty").touch()
        files.put_file(plan.attempt_name(part), folder / "empty")
        undo.callback(files.delete, [plan.attempt_name(part)])
        # The token in the name of a shard shows which plan the shard belongs to.
        shard = folder / SHARD_FOLDER / f"{part:05}-{plan.token}{secrets.token_hex(4)}.lmdb"
        begin, end = plan.part_span(part)
        if isinstance(files, Bucket):
            path = folder / "list"
            path.write_bytes(files.get(list_name(plan.token), span=(begin, end)) if begin < end else b"")
            begin, end = 0, end - begin
        elif not (path := files.folder / list_name(plan.token)).is_file():
            raise StoreNotFoundError(f"{path} is missing: plan again with overwrite (--overwrite)")
        with path.open("rb") as data:  # a list on a disk is read in place: it may be larger than the memory
            receipt = _make_shard(plan, part, FileList.of_span(data, begin, end), shard, workers)
        shard_key, index_key, table = f"{SHARD_FOLDER}/{shard.name}", f"{RECEIPT_FOLDER}/{shard.name}", b""
        shards.put_file(shard_key, shard)
        if isinstance(files, Bucket):  # from this index file, `publish` makes the store without fetching the shard
            one = index_shards(folder, [shard.name], [receipt.digest], classes=plan.classes, source=plan.described)
            files.put_file(index_key, folder / one.index_file)
            table = one.encode()
    try:
        files.put_if(receipt_key, seal({**asdict(receipt), "table": table}, part), there)
    except StoreExistsError:  # another attempt was first
        shards.delete([shard_key])
        files.delete([index_key])
        if done := read_receipt(shards, files, plan, part):
            return done[0]
        raise
    if token_of(files) != plan.token and shard_key not in (named := named_files(shards)):
        shards.delete([shard_key])
        files.delete([receipt_key, index_key])
        if not any(f"-{plan.token}" in name for name in named):  # else the store has this part from another attempt
            what = f"{plan.where} was planned again or removed while part {part} was made, so this part is not used"
            raise ConversionError(f"{what}: dbloader parts {os.fspath(destination)} lists missing parts")
    return receipt


def _make_shard(plan: Plan, part: int, files: FileList, path: Path, workers: int) -> PartReceipt:
    """Convert the files of a part into a new shard at a path, and return its receipt."""
    workers, began = whole_number("workers", workers, 1), time.monotonic()
    plan.check_versions()
    return_large_blocks()
    settings = plan.settings
    with closing(open_with(settings, beside=False)) as found, LMDBWriter(path) as writer:
        known = KnownRecords(Path(plan.where.removesuffix(PARTIAL))) if settings.new_only else ()
        into = FileWriter(writer, settings, found, known)
        into.write(files, range(len(files)), workers)
        manifest = writer.finish(classes=plan.classes, source=plan.described)
    return PartReceipt(
        plan=plan.id,
        part=part,
        shard=path.name,
        digest=manifest.digest,
        nbytes=path.stat().st_size,
        records=manifest.length,
        unchanged=into.left_out["unchanged"],
        rejected=manifest.outcome.get("rejected", 0) + into.left_out["rejected"],
        first_rejected=into.first_rejected,
        bytes_read=into.bytes_read,
        host=socket.gethostname(),
        seconds=round(time.monotonic() - began, 1),
    )


def token_of(files: PlanFolder | Bucket) -> str:
    """Return the token of the plan that ``files`` contains now; "" if it contains no plan."""
    with suppress(StoreNotFoundError):
        return Plan.read(files).token
    return ""


def named_files(shards: PlanFolder | Bucket) -> set[str]:
    """Return the paths of all files in the manifest of a store; an empty set without a store."""
    with suppress(StoreNotFoundError):
        return {*ShardTable.decode(shards.get(MANIFEST_FILE), shards.place).files}
    return set()


def read_receipt(
    shards: PlanFolder | Bucket, files: PlanFolder | Bucket, plan: Plan, part: int
) -> tuple[PartReceipt, bytes] | None:
    """Return the receipt of a part, and a ``manifest.bson`` that names only this part's shard (b"" on a disk).

    Return None if the part is not made, or its shard is missing or incomplete. The receipt is opened by its name,
    because a network file system may show an outdated list of a folder's files.

    Raises:
        DamagedStoreError: The receipt is damaged, or belongs to another plan.
    """
    try:
        data = files.get(plan.receipt_name(part))
    except StoreNotFoundError:
        return None
    path = f"{plan.where}/{plan.receipt_name(part)}"
    try:
        values = open_sealed(data, part)
        table = values.pop("table")
        receipt = PartReceipt(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedStoreError(f"{path} is damaged: {error}; remove it, and make part {part} again") from error
    if receipt.plan != plan.id:
        raise DamagedStoreError(f"{path} is of another plan; remove it, and make part {part} again")
    shard = shards.head(f"{SHARD_FOLDER}/{receipt.shard}")
    return (receipt, table) if shard is not None and shard.size == receipt.nbytes else None


def read_receipts(
    shards: PlanFolder | Bucket, files: PlanFolder | Bucket, plan: Plan
) -> list[tuple[PartReceipt, bytes]]:
    """Return what `read_receipt` returns for all parts that are made, in order."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dbloader-parts") as threads:
        found = threads.map(lambda part: read_receipt(shards, files, plan, part), range(plan.parts))
        return [receipt for receipt in found if receipt is not None]


@contextmanager
def scratch_folder(scratch: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Yield a new locked folder in ``scratch``, or without ``scratch`` in ``TMPDIR``. Remove the folder at the end."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=scratch) as name:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(descriptor)


def left_folders(scratch: str | os.PathLike[str] | None, *, remove: bool = False) -> list[tuple[Path, int]]:
    """Return path and size of each folder that a killed process left in ``scratch``. ``remove`` also removes them."""
    found = []
    for path in sorted(Path(scratch or tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        with suppress(OSError):  # the folder is locked, removed meanwhile, or another user's
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - path.stat().st_mtime < _NEW_S:
                    continue
                found.append((path, sum(file.stat().st_size for file in path.rglob("*") if file.is_file())))
                if remove:
                    shutil.rmtree(path)
            finally:
                os.close(descriptor)
    return found


class Attempt(NamedTuple):
    """A running or killed attempt to make a part: number of the part, host name, and start in Unix time."""

    part: int
    host: str
    since: float


class Parts(NamedTuple):
    """The state of a conversion in parts.

    Attributes:
        plan: The plan.
        receipts: Receipts of the parts that are made, in order.
        missing: Numbers of the other parts, ascending.
        attempts: Attempts to make missing parts.
    """

    plan: Plan
    receipts: list[PartReceipt]
    missing: list[int]
    attempts: list[Attempt]


def list_parts(destination: str | os.PathLike[str]) -> Parts:
    """Return which parts of a planned conversion are made."""
    shards, files = open_places(destination)
    plan = Plan.read(files)
    receipts = [receipt for receipt, _ in read_receipts(shards, files, plan)]
    missing = missing_parts(plan, receipts)
    ours = re.compile(rf"(\d+)-{plan.token}\.(.*){re.escape(MAKING)}")  # attempts of a replaced plan have another token
    found = [(ours.fullmatch(posixpath.basename(item.key)), item) for item in files.items(RECEIPT_FOLDER)]
    attempts = [Attempt(int(name[1]), name[2], item.modified.timestamp()) for name, item in found if name]
    return Parts(plan, receipts, missing, sorted(attempt for attempt in attempts if attempt.part in missing))


def missing_parts(plan: Plan, receipts: Iterable[PartReceipt]) -> list[int]:
    """Return the numbers of the parts without a receipt, ascending."""
    return sorted({*range(plan.parts)} - {receipt.part for receipt in receipts})


def slurm_ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers in the notation of Slurm's ``--array``: "3,17,40-42"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
