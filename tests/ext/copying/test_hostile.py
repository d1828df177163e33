"""Copies of damaged stores: each copy is right, or raises one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbloader import copy_store, open_store
from tests.contracts.records import stored
from tests.stores.lmdb.test_hostile import DAMAGE, FILE, LYING, TRIALS, outcome_of, run_trials
from tests.stores.mongo import test_hostile as hostile
from tests.stores.mongo.test_hostile import place  # noqa: F401 - a fixture
from tests.support.mongo import Mongod


def observe_copy(place: Path) -> dict[str, Any]:  # noqa: F811
    with open_store(place) as store:
        copied = outcome_of(lambda: copy_store(place, f"{place}.copy", overwrite=True).digest)
        return {"verify": outcome_of(store.verify), "copy": copied}


@pytest.mark.slow
@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("kind", [*DAMAGE, *LYING, FILE])
def test_copy_of_damage_raises_one_clear_error(tmp_path: Path, kind: str, trials: int) -> None:
    _, wrong = run_trials(kind, trials, tmp_path, observe_copy)
    assert wrong == []


def copied(place: str, folder: Path) -> list[bytes]:  # noqa: F811
    copy_store(place, folder / "copy.lmdb", overwrite=True)
    with open_store(folder / "copy.lmdb") as store:
        return stored(store, range(len(store)))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, hostile.TRIALS, hostile.AT_ONCE))
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name not in hostile.IN_CI)) for name in hostile.KINDS]
)
def test_copy_of_a_damaged_document_raises_or_is_right(
    mongod: Mongod,
    place: str,  # noqa: F811
    name: str,
    first: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = {"verify": hostile.READS["verify"], "copy": copied}
    # An error of a copy may be raised by the copy's writer, which does not know the source.
    hostile.run_trials(mongod, place, name, first, tmp_path, monkeypatch, reads, lambda _: True)
