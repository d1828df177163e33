"""Make a part of a planned conversion: a shard and its receipt. List the parts that are made."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dbloader._options import whole_number
from dbloader.conversion.convert_files import FileWriter
from dbloader.conversion.parallel import return_large_blocks
from dbloader.conversion.parts.plan import MAKING, RECEIPT_FOLDER, Plan
from dbloader.errors import ConversionError, DamagedStoreError, OptionError, StoreNotFoundError
from dbloader.records.document import open_sealed, seal
from dbloader.stores.lmdb.errors import refusals
from dbloader.stores.lmdb.publish_shards import copy_durably, write_durably
from dbloader.stores.lmdb.shard_table import SHARD_FOLDER
from dbloader.stores.lmdb.writer import LMDBWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dbloader.conversion.file_list import FileList


_PREFIX = "dbloader-part-"
_NEW_S = 60.0  # seconds in which an unlocked folder is kept: its process may lock it soon


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReceipt:
    """The receipt of a part that is made.

    Attributes:
        plan: Id of the plan.
        part: Number of the part, from 0.
        shard: File name of the shard.
        digest: Content digest of the shard.
        nbytes: Size of the shard's file.
        records: Number of records in the shard.
        rejected: Number of files that are not in the shard.
        first_rejected: Name of the first rejected file, and the reason; "" if there is none.
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

    The shard is made in a local folder, and copied into the folder of the plan. The receipt is written last, and nobody
    uses a shard without a receipt. So a part may be killed and made again, and several processes may make the same
    part: all make the same records.

    Args:
        destination: Place of the future store.
        part: Number of the part, from 0.
        workers: Threads that read and check.
        scratch: A local folder for the unfinished shard; None for the system's (``TMPDIR``).

    Raises:
        StoreNotFoundError: The destination has no plan.
        OptionError: The plan has no such part; or an option is out of its range.
        ConversionError: A file is rejected, and the plan has ``on_bad`` or ``on_damaged`` ``"fail"``; this machine has
            other versions of the libraries than the plan; or the plan was replaced while the part was made.
        StoreError: The shard cannot be written.
    """
    plan = Plan.open(destination)
    part = check_part(plan, part)
    done = read_receipt(plan, part)
    if done is not None:
        return done
    with refusals(f"part {part} of {os.fspath(destination)}"):
        return _make(plan, destination, part, workers, scratch)


def _make(
    plan: Plan, destination: str | os.PathLike[str], part: int, workers: int, scratch: str | os.PathLike[str] | None
) -> PartReceipt:
    attempt = plan.folder / plan.attempt_name(part)
    with scratch_folder(scratch) as local, ExitStack() as undo:
        attempt.touch()
        undo.callback(attempt.unlink, missing_ok=True)
        shard = local / f"{part:05}-{secrets.token_hex(4)}.lmdb"
        with plan.open_part(part) as files:
            receipt = make_shard(plan, part, files, shard, workers)
        stored = plan.folder / SHARD_FOLDER / receipt.shard
        copy_durably(shard, stored)
    path = plan.folder / plan.receipt_name(part)
    write_durably(path, encode_receipt(receipt))
    with suppress(StoreNotFoundError):  # the plan was published or removed meanwhile
        if Plan.open(destination).token != plan.token:
            for late in (path, stored):
                late.unlink(missing_ok=True)
            raise replaced_plan(plan, part)
    return receipt


def check_part(plan: Plan, part: int) -> int:
    """Return the number of a part; raise OptionError if the plan has no such part."""
    part = whole_number("part", part, 0)
    if part >= plan.parts:
        raise OptionError(f"part must be 0 to {plan.parts - 1}, as in the plan {plan.where}, got {part}")
    return part


def make_shard(plan: Plan, part: int, files: FileList, path: Path, workers: int) -> PartReceipt:
    """Convert the files of a part into a new shard at a path, and return its receipt."""
    workers, began = whole_number("workers", workers, 1), time.monotonic()
    plan.check_versions()
    return_large_blocks()
    settings = plan.settings
    with closing(settings.open()) as found, LMDBWriter(path) as writer:
        into = FileWriter(writer, settings, found, in_parts=True)
        into.write(files, range(len(files)), workers)
        manifest = writer.finish(classes=plan.classes, source=plan.described)
    return PartReceipt(
        plan=plan.id,
        part=part,
        shard=path.name,
        digest=manifest.digest,
        nbytes=path.stat().st_size,
        records=manifest.length,
        rejected=manifest.outcome.get("rejected", 0),
        first_rejected=into.first_rejected,
        bytes_read=into.bytes_read,
        host=socket.gethostname(),
        seconds=round(time.monotonic() - began, 1),
    )


def replaced_plan(plan: Plan, part: int) -> ConversionError:
    """Return the error for a part whose plan was replaced while the part was made."""
    return ConversionError(f"{plan.where} has another plan than when part {part} began: make the part again")


def read_receipt(plan: Plan, part: int) -> PartReceipt | None:
    """Return the receipt of a part; None if the part is not made, or if its shard is missing or cut short.

    Raises:
        DamagedStoreError: The receipt is damaged, or belongs to another plan.
    """
    try:
        receipt, _ = decode_receipt(plan, part, (plan.folder / plan.receipt_name(part)).read_bytes())
        size = (plan.folder / SHARD_FOLDER / receipt.shard).stat().st_size
    except FileNotFoundError:
        return None
    return receipt if size == receipt.nbytes else None


def encode_receipt(receipt: PartReceipt, table: bytes = b"") -> bytes:
    """Return the content of a receipt's file. ``table`` is the manifest of a store with only this shard, or b""."""
    return seal({**asdict(receipt), "table": table}, receipt.part)


def decode_receipt(plan: Plan, part: int, data: bytes) -> tuple[PartReceipt, bytes]:
    """Return the receipt and the table in the content of a file; raise DamagedStoreError like ``read_receipt``."""
    path = f"{plan.where}/{plan.receipt_name(part)}"
    try:
        values = open_sealed(data, part)
        table = values.pop("table")
        receipt = PartReceipt(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedStoreError(f"{path} is damaged: {error}; remove it, and make part {part} again") from error
    if receipt.plan != plan.id:
        raise DamagedStoreError(f"{path} is of another plan; remove it, and make part {part} again")
    return receipt, table


@contextmanager
def scratch_folder(scratch: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Yield a new locked folder in ``scratch`` (None: the system's, ``TMPDIR``), and remove it at the end."""
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
    """Return which parts of a planned conversion are made.

    Each receipt is opened by its name, because a network file system may show an outdated list of a folder's files.

    Raises:
        StoreNotFoundError: The destination has no plan.
        DamagedStoreError: A receipt is damaged, or of another plan.
    """
    plan = Plan.open(destination)
    for name in (RECEIPT_FOLDER, SHARD_FOLDER):
        with suppress(OSError), os.scandir(plan.folder / name):
            pass  # NFS may deny a new file until its folder is opened again
    found = (read_receipt(plan, part) for part in range(plan.parts))
    receipts = [receipt for receipt in found if receipt is not None]
    written = []
    for path in (plan.folder / RECEIPT_FOLDER).glob(f"*{MAKING}"):
        with suppress(FileNotFoundError):  # the part was made just now
            written.append((path.name, path.stat().st_mtime))
    return state_of(plan, receipts, written)


def missing_parts(plan: Plan, receipts: Iterable[PartReceipt]) -> list[int]:
    """Return the numbers of the parts without a receipt, ascending."""
    return sorted({*range(plan.parts)} - {receipt.part for receipt in receipts})


def state_of(plan: Plan, receipts: list[PartReceipt], written: Iterable[tuple[str, float]]) -> Parts:
    """Return the state of a conversion. ``written`` has the name and Unix time of the file of each attempt."""
    missing = missing_parts(plan, receipts)
    ours = re.compile(rf"(\d+)-{plan.token}\.(.*){re.escape(MAKING)}")  # a replaced plan has another token
    found = [Attempt(int(file[1]), file[2], since) for name, since in written if (file := ours.fullmatch(name))]
    return Parts(plan, receipts, missing, sorted(attempt for attempt in found if attempt.part in missing))


def slurm_ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers in the notation of Slurm's ``--array``: "3,17,40-42"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
