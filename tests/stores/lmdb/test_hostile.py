"""Damaged and false stores: no wrong value without an error, no crash, no hang; see support/hostile.py."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.hostile import DAMAGE, FILE, LYING, run_trials

if TYPE_CHECKING:
    from pathlib import Path

TRIALS = [3, pytest.param(int(os.environ.get("DBLOADER_TRIALS", "10")), marks=pytest.mark.nightly)]


@pytest.mark.slow
@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("kind", [*DAMAGE, *LYING, FILE])
def test_damage_raises_an_error_of_one_line(tmp_path: Path, kind: str, trials: int) -> None:
    outcome = run_trials(kind, trials, tmp_path)
    assert outcome.trials == trials
    assert outcome.found > trials // 4
    assert (outcome.silent, outcome.unverified, outcome.raw, outcome.slow) == ([], [], [], [])
