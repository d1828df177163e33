"""Stores that are damaged at random, or have wrong values under right checksums: every reader ends with one error."""

from __future__ import annotations

import contextlib
import gc
import io
import multiprocessing
import os
import random
import resource
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import bson
import lmdb
import numpy as np
import pytest
from bson.binary import Binary
from bson.int64 import Int64

from dbloader import Record, open_store
from dbloader.cli import main
from dbloader.errors import DBLoaderError
from dbloader.records.columns import COLUMNS, DTYPES, seal_chunk
from dbloader.records.document import open_sealed, seal
from dbloader.records.record import encode
from dbloader.stores.open import create_store
from tests.support.values import LIES

if TYPE_CHECKING:
    from collections.abc import Callable

TRIALS = [3, pytest.param(int(os.environ.get("DBLOADER_TRIALS", "10")), marks=pytest.mark.nightly)]
RECORDS = 40
# Above what the process has before: a store that lies must not take more.
MEMORY = 512 * 2**20
# Of one trial, on a machine that is busy with other things.
SECONDS = 20.0
COMMANDS = (
    ("info", "{}"),
    ("info", "{}", "--json"),
    ("info", "{}", "--report"),
    ("verify", "{}"),
    ("copy", "{}", "{}.copy"),
)


class Outcome(NamedTuple):
    """What came of some trials.

    Attributes:
        trials: How many there were.
        found: Trials in which reading something raised an error that names the store, or a command ended with one line.
        silent: Trials in which reading something gave another value and no error, and what that was.
        unverified: Trials in which reading something failed and ``verify`` said that all is whole.
        raw: What was raised that is no error of dbloader's, and tracebacks of commands.
        slow: Trials that took over SECONDS.
    """

    trials: int
    found: int
    silent: list[str]
    unverified: list[str]
    raw: list[str]
    slow: list[str]


def write(place: Path) -> None:
    """Write a store that has something of everything."""
    rng = random.Random(0)
    with create_store(place) as writer:
        for index in range(RECORDS):
            record = Record(
                name=None if index % 11 == 7 else f"class {index % 3}/ü {index}.jpg",
                label=None if index % 13 == 5 else index % 3,
                image=np.arange(index * 3, dtype="<u2").reshape(index, 3) if index % 5 == 4 else rng.randbytes(300),
                width=64 + index,
                height=48,
                format="JPEG" if index % 5 < 4 else None,
                damaged="cut short" if index == 6 else None,
                resized_from=(600, 400) if index % 4 == 0 else None,
                fields={"caption": f"größer {index}", "boxes": [[1, 2], [3, index]], "mask": np.eye(3, dtype=bool)},
            )
            lines = [{"name": f"{index}.jpg", "event": "rejected", "reason": "is no image"}] if index % 9 == 0 else []
            writer.write([encode(record)], events=lines, outcome={"rejected": len(lines)})
        writer.finish(classes=["cat", "dog", "hörse"], source={"path": "/data", "check": "decode"})


def observe(place: Path) -> dict[str, Any]:
    """Return everything that can be read of a store, or the error that reading it raised, by what was read."""
    with open_store(place) as store:
        reads: dict[str, Callable[[], Any]] = {
            "manifest": lambda: asdict(store.manifest),
            "names": lambda: list(store.names()),
            "events": lambda: list(store.events()),
            "verify": store.verify,
            "find": lambda: store.find("class 1/ü 1.jpg"),
        }
        seen = {what: _outcome_of(read) for what, read in reads.items()}
        for column in DTYPES:
            seen[column] = _outcome_of(lambda column: store.column(column).tolist(), column)
        for index in range(RECORDS):
            seen[f"name {index}"] = _outcome_of(store.name, index)
            seen[f"record {index}"] = _outcome_of(lambda index: _plain(asdict(store[index])), index)
        return seen


def _outcome_of(read: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except Exception as error:
        return error


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        # An array without elements may have a trillion rows, of which no list can be made.
        return ("array", str(value.dtype), value.tolist() if value.size else value.shape)
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


def run_commands(place: Path) -> list[str]:
    """Run the command line on a store; return what was not what dbloader has to say, in whole lines."""
    wrong = []
    for command in COMMANDS:
        arguments = [word.format(place) for word in command]
        stdout, stderr = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        status: Any = None
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            sys.argv = ["dbloader", *arguments]
            try:
                main()
            except SystemExit as stop:
                status = stop.code
            except BaseException as error:
                wrong.append(f"{command[0]}: {error!r:.200}")
                continue
        said = stderr.getvalue()
        errors = [line for line in said.splitlines() if line.startswith("Error: ")]
        told = len(errors) == 1 or (errors and command[0] == "verify")  # which has a line for each problem
        if "Traceback" in said or status not in (0, 1, 2) or (status and not told):
            wrong.append(f"{' '.join(command)}: status {status}, {said[-300:]!r}")
    for left in place.parent.glob("*.copy*"):
        left.unlink()
    return wrong


# ---- What is done to a store: each is given the file, open to be written to, and a source of chance


class Tampering:
    """A store that is open to be changed below LMDB's interface."""

    def __init__(self, place: Path) -> None:
        self._env = lmdb.open(str(place), subdir=False, lock=False, max_dbs=2, sync=False)
        self._databases = {name: self._env.open_db(name) for name in (b"records", b"meta")}

    def keys(self, database: bytes) -> list[bytes]:
        with self._env.begin(db=self._databases[database]) as txn:
            return [bytes(key) for key in txn.cursor().iternext(values=False)]

    def get(self, database: bytes, key: bytes) -> bytes:
        with self._env.begin(db=self._databases[database]) as txn:
            return bytes(txn.get(key) or b"")

    def put(self, database: bytes, key: bytes, value: bytes | None) -> None:
        with self._env.begin(write=True, db=self._databases[database]) as txn:
            txn.put(key, value) if value is not None else txn.delete(key)

    @property
    def salt(self) -> int:
        return int(open_sealed(self.get(b"meta", b"manifest"))["salt"])

    def close(self) -> None:
        self._env.close()


def _any_value(store: Tampering, rng: random.Random) -> tuple[bytes, bytes, bytes]:
    """Choose a value of which a store is made; ``progress`` means nothing in a finished one."""
    database = rng.choice([b"records", b"meta", b"meta"])
    key = rng.choice([key for key in store.keys(database) if key != b"progress"])
    return database, key, store.get(database, key)


def flip_a_bit(store: Tampering, rng: random.Random) -> None:
    database, key, value = _any_value(store, rng)
    bit = rng.randrange(8 * len(value))
    store.put(database, key, value[: bit // 8] + bytes([value[bit // 8] ^ 1 << bit % 8]) + value[bit // 8 + 1 :])


def damage_a_value(store: Tampering, rng: random.Random) -> None:
    database, key, value = _any_value(store, rng)
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
    store.put(database, key, new)


def exchange_values(store: Tampering, rng: random.Random) -> None:
    """Put the value of one key at another one; of a record, with the index of its new place."""
    database, key, _ = _any_value(store, rng)
    like = [other for other in store.keys(database) if len(other) == len(key) and other != b"progress"]
    value = store.get(database, rng.choice(like))
    if database == b"records":
        value = value[:9] + int.from_bytes(key, "big").to_bytes(8, "little") + value[17:]
    store.put(database, key, value)


def _npy(rng: random.Random) -> Binary:
    dtype = rng.choice(["|V0", "<f8", "|O", "<U0", "|S0", "|b1", "M8[Y]", "nonsense"])
    shape = rng.choice(["(1000000000000,)", "(1000000000000, 0)", "(-1,)", "()", "(2, 2)", "'x'", "(" * 50])
    header = f"{{'descr': {dtype!r}, 'fortran_order': {rng.choice(['True', 'False', '3'])}, 'shape': {shape}, }}\n"
    version = rng.choice([1, 2, 3, 9])
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    return Binary(b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + rng.randbytes(32), 0x80)


def _lie(rng: random.Random) -> Any:
    return _npy(rng) if rng.random() < 0.15 else rng.choice(LIES)


def lie_in_the_manifest(store: Tampering, rng: random.Random) -> None:
    manifest = open_sealed(store.get(b"meta", b"manifest"))
    for name in rng.sample(sorted(manifest), rng.choice([1, 1, 1, 2, 5])):
        if rng.random() < 0.1:
            del manifest[name]
        elif rng.random() < 0.3 and isinstance(manifest[name], dict):
            manifest[name] = {**manifest[name], "a": _lie(rng)}
        else:
            manifest[name] = _lie(rng)
    store.put(b"meta", b"manifest", seal(manifest))


def lie_in_a_record(store: Tampering, rng: random.Random) -> None:
    key = rng.choice(store.keys(b"records"))
    values = dict(bson.decode(store.get(b"records", key)))
    del values["_id"], values["crc32"]
    for name in rng.sample([*values, "label", "gridfs", "tiles", "new"], rng.choice([1, 1, 2, 4])):
        values[name] = _lie(rng)
    if rng.random() < 0.1:
        values = dict(rng.sample(sorted(values.items(), key=str), len(values)))
    index = int.from_bytes(key, "big")
    crc = int.from_bytes(seal(values, index, store.salt)[-9:-1], "little")  # where a sealed document has it too
    store.put(b"records", key, bson.encode({"_id": Int64(index), **values, "crc32": Int64(crc)}))


def lie_in_an_event(store: Tampering, rng: random.Random) -> None:
    key = rng.choice([key for key in store.keys(b"meta") if key.startswith(b"event/")])
    number = int.from_bytes(key[-8:], "big")
    event = open_sealed(store.get(b"meta", key), number, store.salt)
    event[rng.choice([*event, "new"])] = _lie(rng)
    store.put(b"meta", key, seal(event, number, store.salt))


def lie_in_a_column(store: Tampering, rng: random.Random) -> None:
    column = rng.choice(COLUMNS)
    key = b"column/%s/%s" % (column.encode(), bytes(8))
    chunk = bytearray(store.get(b"meta", key)[:-4])
    for _ in range(rng.choice([1, 1, 3, 20])):
        chunk[rng.randrange(len(chunk))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    store.put(b"meta", key, seal_chunk(column, 0, bytes(chunk), store.salt))


DAMAGE: dict[str, Callable[[Tampering, random.Random], None]] = {
    "one bit of a value": flip_a_bit,
    "a value cut, lost, overwritten": damage_a_value,
    "values exchanged": exchange_values,
}
LYING: dict[str, Callable[[Tampering, random.Random], None]] = {
    "a manifest that lies": lie_in_the_manifest,
    "a record that lies": lie_in_a_record,
    "an event that lies": lie_in_an_event,
    "a column that lies": lie_in_a_column,
}
FILE = "bytes of the file"


def damage_the_file(place: Path, rng: random.Random) -> None:
    """Damage a file below LMDB: bits, zeros, noise, another page of it, or its end."""
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


def try_one(kind: str, seed: int, whole: Path, place: Path, expected: dict[str, Any]) -> Outcome:
    """Damage a copy of a store and read all of it."""
    rng = random.Random(f"{kind} {seed}")
    place.unlink(missing_ok=True)  # a new file: LMDB's environments are told apart by the file, not by its name
    shutil.copyfile(whole, place)
    if kind == FILE:
        damage_the_file(place, rng)
    else:
        store = Tampering(place)
        try:
            (DAMAGE | LYING)[kind](store, rng)
        finally:
            store.close()
    began = time.monotonic()
    try:
        seen: dict[str, Any] = observe(place)
    except Exception as error:
        seen = {"open": error}
    raw = [f"{what}: {error!r:.200}" for what, error in seen.items() if _is_raw(error)]
    raw += run_commands(place)
    took = time.monotonic() - began
    errors = [what for what, value in seen.items() if isinstance(value, Exception)]
    others = [what for what, value in seen.items() if what not in errors and value != expected.get(what)]
    unverified = bool(errors) and not {"open", "verify"} & set(errors)
    name = f"{kind}, seed {seed}"
    return Outcome(
        trials=1,
        found=int(bool(errors)),
        silent=[f"{name}: {others}"] if others and kind not in LYING else [],
        unverified=[f"{name}: {errors}"] if unverified and kind not in LYING else [],
        raw=[f"{name}: {what}" for what in raw],
        slow=[f"{name}: {took:.0f} s"] if took > SECONDS else [],
    )


def _is_raw(error: object) -> bool:
    return isinstance(error, BaseException) and not isinstance(error, DBLoaderError)


def run_trials(kind: str, trials: int, folder: Path) -> Outcome:
    """Run trials of a kind, and return what came of all of them.

    In a process of its own: what LMDB or the kernel would do to it is found too, as is memory without bounds.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_run_trials, args=(sender, kind, trials, folder))
    process.start()
    sender.close()
    try:
        outcomes = []
        while True:
            outcome = receiver.recv()
            outcomes.append(outcome)
    except EOFError:
        process.join()
    if process.exitcode or len(outcomes) < trials:
        crash = f"{kind}, seed {len(outcomes)}: the process ended with {process.exitcode}"
        outcomes.append(Outcome(1, 0, [], [], [crash], []))
    numbers = [sum(outcome[column] for outcome in outcomes) for column in range(2)]
    texts = [[text for outcome in outcomes for text in outcome[column]] for column in range(2, 6)]
    return Outcome(*numbers, *texts)


def _run_trials(sender: Any, kind: str, trials: int, folder: Path) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    gc.freeze()  # what the parent left, so that collecting is cheap
    whole, place = folder / "whole.lmdb", folder / "damaged.lmdb"
    write(whole)
    expected = observe(whole)
    assert not any(isinstance(value, Exception) for value in expected.values()), expected
    assert not run_commands(whole)
    for seed in range(trials):
        sender.send(try_one(kind, seed, whole, place, expected))
        gc.collect()  # maps of damaged files, which errors with tracebacks keep open, count against the limit


@pytest.mark.slow
@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("kind", [*DAMAGE, *LYING, FILE])
def test_damage_raises_an_error_of_one_line(tmp_path: Path, kind: str, trials: int) -> None:
    outcome = run_trials(kind, trials, tmp_path)
    assert outcome.trials == trials
    assert outcome.found > trials // 4
    assert (outcome.silent, outcome.unverified, outcome.raw, outcome.slow) == ([], [], [], [])
