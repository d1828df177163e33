"""Damaged stores and stores that lie: nothing is silent, nothing crashes, nothing hangs; see hostile.py."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.hostile import DAMAGE, FILE, LYING, run_trials

if TYPE_CHECKING:
    from pathlib import Path

TRIALS = int(os.environ.get("DBLOADER_TRIALS", "10"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*DAMAGE, *LYING, FILE])
def test_damage_raises_an_error_of_one_line(tmp_path: Path, kind: str) -> None:
    outcome = run_trials(kind, TRIALS, tmp_path)
    assert outcome.trials == TRIALS
    assert outcome.found > TRIALS // 4
    assert (outcome.silent, outcome.unverified, outcome.raw, outcome.slow) == ([], [], [], [])
