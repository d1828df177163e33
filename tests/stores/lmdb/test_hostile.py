"""Randomly damaged stores, and stores with false values and correct checksums. Every use raises one clear error."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import resource
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bson
import numpy as np
import pytest
from bson.binary import Binary
from bson.int64 import Int64

from dbloader import open_store
from dbloader.errors import DBLoaderError
from dbloader.records.columns import COLUMNS, DTYPES, seal_chunk
from dbloader.records.document import open_sealed, seal
from tests.contracts.records import make_records, write
from tests.support.lmdb_files import content_of, salt_at, tamper, value_at
from tests.support.values import LIES

TRIALS = [8, pytest.param(int(os.environ.get("DBLOADER_TRIALS", "10")), marks=pytest.mark.nightly)]
RECORDS = 40
# Bytes that the process of the trials may allocate. A false value must not make dbloader allocate more.
MEMORY = 512 * 2**20
SECONDS = 20.0  # limit for one trial, on a busy machine


def write_whole(place: Path) -> None:
    """Write a store with values of every kind."""
    records = make_records(RECORDS)
    records[6].damaged, records[8].resized_from = "cut short", (600, 400)
    write(place, records)


def observe(place: Path, count: int = RECORDS) -> dict[str, Any]:
    """Return what each way of reading a store of ``count`` records returns, or the error that it raises."""
    with open_store(place) as store:
        reads: dict[str, Callable[[], Any]] = {
            "manifest": lambda: asdict(store.manifest),
            "names": lambda: list(store.names()),
            "events": lambda: list(store.events()),
            "verify": store.verify,
            "find": lambda: store.find(str(store.name(2))),
        }
        seen = {what: outcome_of(read) for what, read in reads.items()}
        for column in DTYPES:
            seen[column] = outcome_of(lambda column: store.column(column).tolist(), column)
        for index in range(count):
            seen[f"name {index}"] = outcome_of(store.name, index)
            seen[f"record {index}"] = outcome_of(lambda index: _plain(asdict(store[index])), index)
        return seen


def outcome_of(read: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns, or the error that it raises."""
    try:
        return read(*arguments)
    except Exception as error:
        return error


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        # An array without elements may claim a trillion rows, too many for a list.
        return ("array", str(value.dtype), value.tolist() if value.size else value.shape)
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


# ---- Damage


def _any_value(place: Path, rng: random.Random) -> tuple[bytes, bytes, bytes]:
    """Choose a value of a store, but not ``progress``, which is unused in a finished store."""
    database = rng.choice([b"records", b"meta", b"meta"])
    values = content_of(place)[database]
    key = rng.choice([key for key in values if key != b"progress"])
    return database, key, values[key]


def flip_a_bit(place: Path, rng: random.Random) -> None:
    database, key, value = _any_value(place, rng)
    bit = rng.randrange(8 * len(value))
    tamper(place, database, {key: value[: bit // 8] + bytes([value[bit // 8] ^ 1 << bit % 8]) + value[bit // 8 + 1 :]})


def damage_a_value(place: Path, rng: random.Random) -> None:
    database, key, value = _any_value(place, rng)
    at, length = rng.randrange(len(value)), rng.randrange(1, 40)
    new = rng.choice(
        [
            None,
            b"",
            value[:at],
            value + rng.randbytes(length),
            value[:at] + rng.randbytes(length) + value[at + length :],
            value[:at] + bytes(length) + value[at + length :],
            rng.randbytes(len(value)),
        ]
    )
    tamper(place, database, {key: new})


def exchange_values(place: Path, rng: random.Random) -> None:
    """Store the value of one key under another key. A record gets the index of its new key."""
    database, key, _ = _any_value(place, rng)
    like = [other for other in content_of(place)[database] if len(other) == len(key) and other != b"progress"]
    value = value_at(place, database, rng.choice(like))
    if database == b"records":
        value = value[:9] + int.from_bytes(key, "big").to_bytes(8, "little") + value[17:]
    tamper(place, database, {key: value})


def _npy(rng: random.Random) -> Binary:
    dtype = rng.choice(["|V0", "<f8", "|O", "<U0", "|S0", "|b1", "M8[Y]", "nonsense"])
    shape = rng.choice(["(1000000000000,)", "(1000000000000, 0)", "(-1,)", "()", "(2, 2)", "'x'", "(" * 50])
    header = f"{{'descr': {dtype!r}, 'fortran_order': {rng.choice(['True', 'False', '3'])}, 'shape': {shape}, }}\n"
    version = rng.choice([1, 2, 3, 9])
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    return Binary(b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + rng.randbytes(32), 0x80)


def _lie(rng: random.Random) -> Any:
    return _npy(rng) if rng.random() < 0.15 else rng.choice(LIES)


def lie_in_the_manifest(place: Path, rng: random.Random) -> None:
    manifest = open_sealed(value_at(place, b"meta", b"manifest"))
    for name in rng.sample(sorted(manifest), rng.choice([1, 1, 1, 2, 5])):
        if rng.random() < 0.1:
            del manifest[name]
        elif rng.random() < 0.3 and isinstance(manifest[name], dict):
            manifest[name] = {**manifest[name], "a": _lie(rng)}
        else:
            manifest[name] = _lie(rng)
    tamper(place, b"meta", {b"manifest": seal(manifest)})


def lie_in_a_record(place: Path, rng: random.Random) -> None:
    key = rng.choice([*content_of(place)[b"records"]])
    values = dict(bson.decode(value_at(place, b"records", key)))
    del values["_id"], values["crc32"]
    for name in rng.sample([*values, "label", "gridfs", "tiles", "new"], rng.choice([1, 1, 2, 4])):
        values[name] = _lie(rng)
    if rng.random() < 0.1:
        values = dict(rng.sample(sorted(values.items(), key=str), len(values)))
    index = int.from_bytes(key, "big")
    # The checksum of a record is computed and placed like the checksum of a sealed document.
    crc = int.from_bytes(seal(values, index, salt_at(place))[-9:-1], "little")
    tamper(place, b"records", {key: bson.encode({"_id": Int64(index), **values, "crc32": Int64(crc)})})


def lie_in_an_event(place: Path, rng: random.Random) -> None:
    key = rng.choice([key for key in content_of(place)[b"meta"] if key.startswith(b"event/")])
    number = int.from_bytes(key[-8:], "big")
    event = open_sealed(value_at(place, b"meta", key), number, salt_at(place))
    event[rng.choice([*event, "new"])] = _lie(rng)
    tamper(place, b"meta", {key: seal(event, number, salt_at(place))})


def lie_in_a_column(place: Path, rng: random.Random) -> None:
    column = rng.choice(COLUMNS)
    key = b"column/%s/%s" % (column.encode(), bytes(8))
    chunk = bytearray(value_at(place, b"meta", key)[:-4])
    for _ in range(rng.choice([1, 1, 3, 20])):
        chunk[rng.randrange(len(chunk))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    tamper(place, b"meta", {key: seal_chunk(column, 0, bytes(chunk), salt_at(place))})


DAMAGE: dict[str, Callable[[Path, random.Random], None]] = {
    "flipped bit": flip_a_bit,
    "cut, lost or overwritten value": damage_a_value,
    "exchanged values": exchange_values,
}
LYING: dict[str, Callable[[Path, random.Random], None]] = {
    "false manifest": lie_in_the_manifest,
    "false record": lie_in_a_record,
    "false event": lie_in_an_event,
    "false column": lie_in_a_column,
}
FILE = "bytes of the file"


def damage_the_file(place: Path, rng: random.Random) -> None:
    """Damage the file itself: flip bits, write zeros or noise, copy another page, or cut the end."""
    data = bytearray(place.read_bytes())
    at = rng.randrange(len(data))
    length = min(len(data) - at, rng.choice([1, 8, 100, 4096]))
    page, other = (4096 * rng.randrange(len(data) // 4096) for _ in range(2))
    kind = rng.randrange(5)
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at : at + length] = bytes(length)
    elif kind == 2:
        data[at : at + length] = rng.randbytes(length)
    elif kind == 3:
        data[page : page + 4096] = data[other : other + 4096]
    else:
        del data[at:]
    place.write_bytes(data)


# ---- Trials


def try_one(
    kind: str, seed: int, whole: Path, place: Path, expected: dict[str, Any], read: Callable[[Path], dict[str, Any]]
) -> tuple[bool, list[str]]:
    """Damage a copy of a store and read it.

    Returns:
        Whether a read raised an error, and a list of what is wrong: reads that returned another value without an error,
        errors that ``verify`` missed, errors that are not dbloader's or have several lines, and a trial that took over
        SECONDS.
    """
    rng = random.Random(f"{kind} {seed}")
    # use a new file, because LMDB identifies environments by the file and not by its name
    place.unlink(missing_ok=True)
    shutil.copyfile(whole, place)
    if kind == FILE:
        damage_the_file(place, rng)
    else:
        (DAMAGE | LYING)[kind](place, rng)
    began = time.monotonic()
    try:
        seen = read(place)
    except Exception as error:
        seen = {"open": error}
    errors = {use: value for use, value in seen.items() if isinstance(value, Exception)}
    wrong = [f"{use}: {error!r:.200}" for use, error in errors.items() if not _is_clear(error)]
    if kind not in LYING:
        wrong += [
            f"{use}: another value" for use, value in seen.items() if use not in errors and value != expected[use]
        ]
        if errors and not {"open", "verify"} & set(errors):
            wrong.append(f"verify missed {[*errors]}")
    if time.monotonic() - began > SECONDS:
        wrong.append("too slow")
    return bool(errors), [f"{kind}, seed {seed}: {what}" for what in wrong]


def _is_clear(error: Exception) -> bool:
    return isinstance(error, DBLoaderError) and "\n" not in str(error) and len(str(error)) < 2000


def run_trials(
    kind: str, trials: int, folder: Path, read: Callable[[Path], dict[str, Any]] = observe
) -> tuple[int, list[str]]:
    """Run trials in a child process, because LMDB or the kernel may end it.

    Return the number of trials with an error, and what is wrong.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_run_trials, args=(sender, kind, trials, folder, read))
    process.start()
    sender.close()
    outcomes: list[tuple[bool, list[str]]] = []
    with suppress(EOFError):
        while True:
            outcomes.append(receiver.recv())
    process.join()
    wrong = [what for _, trial in outcomes for what in trial]
    if process.exitcode or len(outcomes) < trials:
        wrong.append(f"{kind}, seed {len(outcomes)}: the process ended with {process.exitcode}")
    return sum(found for found, _ in outcomes), wrong


def _run_trials(sender: Any, kind: str, trials: int, folder: Path, read: Callable[[Path], dict[str, Any]]) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    gc.freeze()  # collecting the parent's objects as garbage would be slow
    whole, place = folder / "whole.lmdb", folder / "damaged.lmdb"
    write_whole(whole)
    expected = read(whole)
    assert not any(isinstance(value, Exception) for value in expected.values()), expected
    for seed in range(trials):
        sender.send(try_one(kind, seed, whole, place, expected, read))
        gc.collect()  # tracebacks of errors keep maps of damaged files open, and these maps count toward the limit


@pytest.mark.slow
@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("kind", [*DAMAGE, *LYING, FILE])
def test_damage_raises_one_clear_error(tmp_path: Path, kind: str, trials: int) -> None:
    found, wrong = run_trials(kind, trials, tmp_path)
    assert wrong == []
    assert found > trials // 4
