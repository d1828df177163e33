"""Stores that are half newer and half older: each reader gives records of one of the two, or raises an error."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.half_old import CHANGES, FORMS, run_trials

if TYPE_CHECKING:
    from pathlib import Path

TRIALS = [1, pytest.param(int(os.environ.get("DBLOADER_TRIALS", "2")), marks=pytest.mark.nightly)]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", CHANGES)
def test_half_old_store_is_never_read_as_whole(tmp_path: Path, form: str, change: str, trials: int) -> None:
    outcomes = run_trials(form, change, trials, tmp_path)
    assert [outcome.silent for outcome in outcomes] == [[]] * trials
    refused = [outcome for outcome in outcomes if outcome.refused]
    assert len(refused) > trials * 3 // 4  # the older part may be pages without a record
