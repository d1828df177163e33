"""Stores that are half newer and half older: each reader gives what one of the two has, or raises an error.

DBLOADER_TRIALS says how many stores of each kind are tried.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.half_old import CHANGES, FORMS, run_trials

if TYPE_CHECKING:
    from pathlib import Path

TRIALS = int(os.environ.get("DBLOADER_TRIALS", "2"))

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", CHANGES)
def test_half_old_store_is_never_read_as_whole(tmp_path: Path, form: str, change: str) -> None:
    outcomes = run_trials(form, change, TRIALS, tmp_path)
    assert [outcome.silent for outcome in outcomes] == [[]] * TRIALS
    refused = [outcome for outcome in outcomes if outcome.refused]
    assert len(refused) > TRIALS * 3 // 4  # the older part may be of pages that no record is in
