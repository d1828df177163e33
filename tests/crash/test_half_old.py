"""An interrupted copy over an older store leaves a store with one new half and one old half.

The manifest names one of the two stores. Each reader must return the content of that store, or raise an error.
DBLOADER_TRIALS is the number of stores of each kind.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from dbloader import LMDBDataset, Record, copy_store, create_loader
from dbloader.errors import DBLoaderError
from dbloader.ext.publishing.publish_shards import index_shards, put_manifest
from dbloader.records.record import encode
from dbloader.stores.open import create_store
from tests.stores.lmdb.test_hostile import observe, outcome_of
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


def read_all(place: Path) -> dict[str, Any]:
    """Return what each way of reading a store returns, or the error that it raises."""
    return {**observe(place, COUNT), "copy": outcome_of(copied, place), "epoch": outcome_of(epoch, place)}


def copied(place: Path) -> str:
    return copy_store(place, f"{place}.copy", overwrite=True).digest


def epoch(place: Path) -> list[Any]:
    with LMDBDataset(place) as dataset, create_loader(dataset, **_LOADING, is_training=False) as loader:
        return [(images.numpy().tobytes(), labels.tolist()) for images, labels in loader]


def raises_or_is_right(place: Path, whole: dict[str, dict[str, Any]]) -> bool:
    """Check that no read of a store silently returns a wrong value, and return whether one raised an error."""
    try:
        seen = from_child(lambda: read_all(place))
    except EOFError:  # a signal ended the process
        return True
    if isinstance(seen, DBLoaderError):
        return True
    errors = [value for value in seen.values() if isinstance(value, Exception)]
    assert all(isinstance(error, DBLoaderError) for error in errors), errors
    if isinstance(seen["manifest"], dict):
        expected = whole[seen["manifest"]["digest"]]
        wrong = [use for use, value in seen.items() if not isinstance(value, Exception) and value != expected[use]]
        assert not wrong, (place, wrong)
    return bool(errors)


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", CHANGES)
def test_half_replaced_store_never_mixes_old_with_new(tmp_path: Path, form: str, change: str, trials: int) -> None:
    newer, older = tmp_path / "newer.lmdb", tmp_path / "older.lmdb"
    make(newer, form, None)
    make(older, form, change)
    whole = {seen["manifest"]["digest"]: seen for seen in map(read_all, (newer, older))}
    assert not [value for seen in whole.values() for value in seen.values() if isinstance(value, Exception)]
    refused = 0
    for seed in range(trials):
        place = tmp_path / f"{seed}.lmdb"
        copy_half(newer, older, place, form, random.Random(f"{form} {change} {seed}"))
        refused += raises_or_is_right(place, whole)  # in a process of its own, because LMDB may crash it
    assert refused > trials * 3 // 4  # the old half may contain only pages without records
