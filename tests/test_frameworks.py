"""Trainings with the real frameworks go on after an interruption as if there had been none."""

import framework_runs
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("framework", framework_runs.FRAMEWORKS)
def test_a_training_goes_on_with_the_samples_that_it_has_not_seen(framework: str, world: int) -> None:
    done = framework_runs.launch(framework, world, quick=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(" runs  same\n") >= 3, done.stdout
    assert "DIFFERENT" not in done.stdout
