"""Interrupted trainings with real frameworks continue with exactly the remaining samples."""

import pytest

from tests.support import framework_runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "world", "least"),
    [
        ("combined", 1, 2),
        ("seeds", 2, 1),
        # scripts/frameworks runs each framework in one and in two processes, with more loaders
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (("lightning", 2, 2), ("accelerate", 2, 2), ("transformers", 1, 2), ("combined", 2, 2))
        ),
    ],
)
def test_interrupted_training_continues_with_unseen_samples(framework: str, world: int, least: int) -> None:
    done = framework_runs.launch([framework], world)
    assert done.returncode == 0, done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith(framework)]
    assert len(rows) >= least, done.stdout
    assert all(row.endswith(" runs  same") for row in rows), done.stdout
