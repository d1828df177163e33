"""Interrupted trainings with real frameworks continue with exactly the remaining samples."""

import pytest

from tests.support import framework_runs


@pytest.mark.nightly  # scripts/frameworks runs each framework in one and in two processes, with more loaders
@pytest.mark.parametrize(
    ("frameworks", "world"),
    [(["torchdata"], 1), (["lightning", "fabric"], 2), (["accelerate", "ignite", "grain"], 2), (["transformers"], 1)],
)
def test_interrupted_training_continues_with_unseen_samples(frameworks: list[str], world: int) -> None:
    done = framework_runs.launch(frameworks, world, quick=True)
    assert done.returncode == 0, done.stdout
    for framework in frameworks:
        rows = [line for line in done.stdout.splitlines() if line.startswith(framework)]
        assert len(rows) >= 2, done.stdout
        assert all(row.endswith(" runs  same") for row in rows), done.stdout
