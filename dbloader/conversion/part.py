"""Make one part of a planned conversion: a shard, and a receipt that says so."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dbloader._options import whole_number
from dbloader.conversion.memory_budget import return_large_blocks
from dbloader.conversion.plan import RECEIPT_FOLDER, Plan
from dbloader.conversion.write_results import FileWriter
from dbloader.errors import ConversionError, DamagedStoreError, OptionError, StoreNotFoundError
from dbloader.records.document import open_sealed, seal
from dbloader.stores.lmdb.errors import refusals
from dbloader.stores.lmdb.publish_shards import copy_durably, write_durably
from dbloader.stores.lmdb.shard_table import SHARD_FOLDER
from dbloader.stores.lmdb.writer import LMDBWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a part has made.

    Attributes:
        plan: The id of the plan.
        part: The number of the part, from 0.
        shard: The file name of the shard.
        digest: The shard's.
        nbytes: The shard's, of the file.
        records: In the shard.
        rejected: Files that are not in it.
        first_rejected: The first of them, and why; "" without one.
        bytes_read: Bytes of the files.
        host: The machine.
        repeats: Requests to the source that were repeated.
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
    repeats: int


def convert_part(
    destination: str | os.PathLike[str],
    part: int,
    *,
    workers: int = 1,
    scratch: str | os.PathLike[str] | None = None,
) -> Receipt:
    """Make a part of the conversion that was planned for a destination, unless it is made already.

    The shard is made in a local folder, copied next to the plan, and renamed; the receipt comes last. So a part that
    is killed leaves nothing that counts, and of several attempts at once each may win: all make the same records.

    Args:
        destination: Place of the store that will be.
        part: Number of the part, from 0.
        workers: Threads that read and check.
        scratch: A local folder for the shard while it is made; None for the system's (``TMPDIR``).

    Raises:
        StoreNotFoundError: The destination has no plan.
        OptionError: The plan has no such part; or an option is out of its range.
        ConversionError: A file was rejected that the conversion must fail on; this machine has other versions of the
            libraries than the plan; or the plan was replaced while the part was made.
        StoreError: The shard cannot be written.
    """
    plan = Plan.open(destination)
    part, workers = whole_number("part", part, 0), whole_number("workers", workers, 1)
    if part >= plan.parts:
        raise OptionError(f"part must be 0 to {plan.parts - 1}, as {plan.folder} says, got {part}")
    done = read_receipt(plan, part)
    if done is not None:
        return done
    plan.check_versions()
    return_large_blocks()
    with refusals(f"part {part} of {os.fspath(destination)}"):
        return _make(plan, destination, part, workers, scratch)


def _make(
    plan: Plan, destination: str | os.PathLike[str], part: int, workers: int, scratch: str | os.PathLike[str] | None
) -> Receipt:
    settings = plan.settings
    shard = f"{part:05}-{secrets.token_hex(4)}.lmdb"
    with tempfile.TemporaryDirectory(prefix="dbloader-", dir=scratch) as local:
        path = Path(local) / shard
        with closing(settings.open()) as found, plan.open_part(part) as files, LMDBWriter(path) as writer:
            into = FileWriter(writer, settings.converter, found, settings.fail_on, in_parts=True)
            into.write(files, range(len(files)), workers)
            manifest = writer.finish(classes=plan.classes, source=plan.described)
            repeats = found.repeats
        copy_durably(path, plan.folder / SHARD_FOLDER / shard)
    receipt = Receipt(
        plan=plan.id,
        part=part,
        shard=shard,
        digest=manifest.digest,
        nbytes=(plan.folder / SHARD_FOLDER / shard).stat().st_size,
        records=manifest.length,
        rejected=manifest.outcome.get("rejected", 0),
        first_rejected=into.first_rejected,
        bytes_read=into.bytes_read,
        host=socket.gethostname(),
        repeats=repeats,
    )
    path = receipt_path(plan, part)
    aside = path.with_name(f"{path.name}.{shard}")
    write_durably(aside, seal(asdict(receipt), part))
    aside.replace(path)
    with suppress(StoreNotFoundError):  # published, or removed
        if Plan.open(destination).token != plan.token:
            for late in (path, plan.folder / SHARD_FOLDER / shard):
                late.unlink(missing_ok=True)
            raise ConversionError(f"{plan.folder} has another plan than when part {part} began: make the part again")
    return receipt


def receipt_path(plan: Plan, part: int) -> Path:
    """Return where the receipt of a part is."""
    # With the token: an attempt at a part of an older plan, which ends late, leaves nothing that counts.
    return plan.folder / RECEIPT_FOLDER / f"{part:05}-{plan.token}.bson"


def read_receipt(plan: Plan, part: int) -> Receipt | None:
    """Return the receipt of a part; None if it is not made, or its shard is not there any more.

    Raises:
        DamagedStoreError: The receipt is damaged, or is one of another plan.
    """
    path = receipt_path(plan, part)
    try:
        receipt = Receipt(**open_sealed(path.read_bytes(), part))
        size = (plan.folder / SHARD_FOLDER / receipt.shard).stat().st_size
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise DamagedStoreError(f"{path} is damaged: {error}; remove it, and make part {part} again") from error
    if receipt.plan != plan.id:
        raise DamagedStoreError(f"{path} is of another plan; remove it, and make part {part} again")
    return receipt if size == receipt.nbytes else None
