"""Trainings with the real frameworks go on after an interruption as if there had been none."""

import pytest

from tests.support import framework_runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("frameworks", "world"),
    [
        (["torchdata"], 1),
        *(
            pytest.param(frameworks, world, marks=pytest.mark.nightly)
            for frameworks, world in (
                (["lightning", "fabric"], 2),
                (["accelerate", "ignite", "grain"], 2),
                (["transformers"], 1),
            )
        ),
    ],
)  # scripts/frameworks runs each in one process and in two, with more loaders
def test_interrupted_training_continues_with_unseen_samples(frameworks: list[str], world: int) -> None:
    done = framework_runs.launch(frameworks, world, quick=True)
    assert done.returncode == 0, done.stdout
    for framework in frameworks:
        rows = [line for line in done.stdout.splitlines() if line.startswith(framework)]
        assert len(rows) >= 2, done.stdout
        assert all(row.endswith(" runs  same") for row in rows), done.stdout


@pytest.mark.slow
def test_hanging_training_is_ended_with_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two processes waits for the second one, which never comes."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    done = framework_runs.launch(["torchdata"], 1, quick=True, limit_s=5)
    assert done.returncode == 1
    assert "Timeout (0:00:05)!" in done.stdout
    assert "in of_torchdata" in done.stdout
