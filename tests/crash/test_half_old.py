"""An interrupted copy over an older store leaves a store with one new half and one old half.

The manifest names one of the two stores. Each reader must return the content of that store, or raise an error.
DBLOADER_TRIALS is the number of stores of each kind.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dbloader import LMDBDataset, Record, create_loader, open_store
from dbloader.errors import DBLoaderError
from dbloader.records.record import encode
from dbloader.stores.lmdb.publish_shards import index_shards, put_manifest
from dbloader.stores.open import create_store
from tests.support.children import from_child
from tests.support.images import photo

TRIALS = [1, pytest.param(int(os.environ.get("DBLOADER_TRIALS", "2")), marks=pytest.mark.nightly)]
COUNT, SHARDS = 30, 3
CHANGES = ("labels", "classes", "images")
FORMS = ("one file", "shards", "parts of shards")
_LOADING: dict[str, Any] = {"batch_size": 5, "input_size": 16, "device": None, "num_workers": 0}


pytestmark = pytest.mark.slow


def make(place: Path, form: str, change: str | None) -> None:
    """Write a store. ``change`` names how the older store differs, and is None for the newer store."""
    shift = int(change in ("labels", "classes"))
    classes = ("cat", "dog", "owl") if change != "classes" else ("dog", "owl", "cat")
    records = [
        encode(Record(f"{index}.jpg", (index + shift) % 3, photo(index + 100 * (change == "images"), 96, 72), 96, 72))
        for index in range(COUNT)
    ]
    if form == "one file":
        _write(place, records, classes)
        return
    (place / "shards").mkdir(parents=True)
    names, size = [f"{number:05}.lmdb" for number in range(SHARDS)], COUNT // SHARDS
    for number, name in enumerate(names):
        _write(place / "shards" / name, records[number * size : (number + 1) * size], classes)
    put_manifest(place, index_shards(place, names, [None] * SHARDS, classes=classes, index="index.lmdb"))


def _write(place: Path, records: list[Any], classes: tuple[str, ...]) -> None:
    with create_store(place) as writer:
        for index, record in enumerate(records):
            events = [{"name": f"{index}.jpg", "event": "repaired", "reason": classes[record.label]}] * (index % 5 == 0)
            writer.write([record], events=events, outcome={"repaired": len(events)})
        writer.finish(classes=classes)


def copy_half(newer: Path, older: Path, place: Path, form: str, rng: random.Random) -> None:
    """Copy a part of a store over an older store."""
    if form == "one file":
        place.write_bytes(_half(newer, older, rng))
        return
    shutil.copytree(older, place)
    files = sorted(path.relative_to(newer) for path in newer.rglob("*") if path.is_file())
    done = rng.randrange(1, len(files))
    for file in files[:done] if rng.random() < 0.5 else rng.sample(files, done):
        shutil.copyfile(newer / file, place / file)
    if form == "parts of shards":
        for number in rng.sample(range(SHARDS), rng.randrange(1, SHARDS + 1)):
            file = Path("shards") / f"{number:05}.lmdb"
            (place / file).write_bytes(_half(newer / file, older / file, rng))


def _half(newer: Path, older: Path, rng: random.Random) -> bytes:
    data = newer.read_bytes()
    cut = int(len(data) * rng.uniform(0.1, 0.9))
    return data[:cut] + older.read_bytes()[cut:]


def observe(place: Path) -> tuple[str, dict[str, tuple[set[Any], bool]]]:
    """Return a store's digest and, for each way to read it, the items and whether the read completed."""
    with open_store(place) as store:
        digest = store.manifest.digest
    return digest, {name: _collect(read, place) for name, read in READS.items()}


def _collect(read: Callable[[Path], Iterator[Any]], place: Path) -> tuple[set[Any], bool]:
    found = set()
    try:
        for item in read(place):
            found.add(item)
    except DBLoaderError:
        return found, False
    return found, True


def _records(place: Path) -> Iterator[Any]:
    refused = []
    with open_store(place) as store:
        for index in range(len(store)):
            try:
                record = store[index]
            except DBLoaderError as error:
                refused.append(error)
            else:
                yield index, record.name, record.label, record.image
    if refused:
        raise refused[0]


def _columns(place: Path) -> Iterator[Any]:
    with open_store(place) as store:
        yield "names", tuple(store.names())
        yield "labels", tuple(store.column("label").tolist())
        yield "classes", store.manifest.classes


def _events(place: Path) -> Iterator[Any]:
    with open_store(place) as store:
        yield from (tuple(event.values()) for event in store.events())


def _epoch(place: Path) -> Iterator[Any]:
    with LMDBDataset(place) as dataset, create_loader(dataset, **_LOADING, is_training=False) as loader:
        for images, labels in loader:
            yield from ((image.numpy().tobytes(), int(label)) for image, label in zip(images, labels, strict=True))


def _verified(place: Path) -> Iterator[Any]:
    with open_store(place) as store:
        yield store.verify()


READS: dict[str, Callable[[Path], Iterator[Any]]] = {
    "records": _records,
    "columns": _columns,
    "events": _events,
    "epoch": _epoch,
    "verify": _verified,
}


def run_trials(form: str, change: str, trials: int, folder: Path) -> int:
    """Read half-old stores, and return how many raised an error. Each has a process, because LMDB may crash it."""
    newer, older = folder / "newer.lmdb", folder / "older.lmdb"
    make(newer, form, None)
    make(older, form, change)
    whole = dict(observe(store) for store in (newer, older))
    assert all(complete for found in whole.values() for _, complete in found.values())
    refused = 0
    for seed in range(trials):
        place = folder / f"{seed}.lmdb"
        copy_half(newer, older, place, form, random.Random(f"{form} {change} {seed}"))
        refused += raises_or_is_right(place, whole)
    return refused


def raises_or_is_right(place: Path, whole: dict[str, dict[str, tuple[set[Any], bool]]]) -> bool:
    """Check that no read of a store silently returns a wrong value, and return whether one raised an error."""
    try:
        seen = from_child(lambda: observe(place))
    except EOFError:  # a signal ended the process
        return True
    if isinstance(seen, DBLoaderError):
        return True
    digest, found = seen
    for name, (items, complete) in found.items():
        right = whole[digest][name][0]
        assert items == right if complete else items <= right, (place, name)
    return not all(complete for _, complete in found.values())


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", CHANGES)
def test_half_old_store_never_mixes_old_and_new_records(tmp_path: Path, form: str, change: str, trials: int) -> None:
    refused = run_trials(form, change, trials, tmp_path)
    assert refused > trials * 3 // 4  # the old half may contain only pages without records
