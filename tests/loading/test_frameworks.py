"""Interrupted trainings with real frameworks continue with exactly the remaining samples."""

import pytest

from tests.support import framework_runs


@pytest.mark.nightly  # scripts/frameworks runs each framework in one and in two processes, with more loaders
@pytest.mark.parametrize(("framework", "world"), [("lightning", 2), ("accelerate", 2), ("transformers", 1)])
def test_interrupted_training_continues_with_unseen_samples(framework: str, world: int) -> None:
    done = framework_runs.launch([framework], world)
    assert done.returncode == 0, done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith(framework)]
    assert len(rows) >= 2, done.stdout
    assert all(row.endswith(" runs  same") for row in rows), done.stdout
