"""After ranks of a training are killed, torchrun restarts all ranks, and each epoch trains on each sample once."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from dbloader import convert
from tests.support import elastic_run
from tests.support.images import plant_photos

pytestmark = pytest.mark.slow

SAMPLES = 96  # 2, 3 and 4 ranks divide this into whole batches, so no sample is left out or repeated
WAIT_S = 240


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    with ThreadPoolExecutor(1) as executor:
        convert(plant_photos(folder / "images", SAMPLES), folder / "a.lmdb", shards=5, executor=executor)
    return folder / "a.lmdb"


def check_each_once(folder: Path) -> None:
    end = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert (end["trained"] == 1).all(), end["trained"]
    assert (end["loader"]["epoch"], end["loader"]["position"]) == (elastic_run.EPOCHS, 0)


def run(place: Path, folder: Path, ranks: int, deaths: list[str], *, restarts: int = 8) -> int:
    """Run torchrun, check that all deaths happened, and return its exit status."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [*torchrun, f"--max-restarts={restarts}", elastic_run.__file__, str(place), str(folder)]
    # Without the last variable, restarted ranks may get the addresses of dead ranks: pytorch/pytorch#135712.
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"
    }  # fmt: skip
    done = subprocess.run(
        [*command, *(f"--die={death}" for death in deaths)],
        capture_output=True, text=True, check=False, timeout=WAIT_S, env=environment,
    )  # fmt: skip
    assert all((folder / death).exists() for death in deaths), done.stderr
    assert done.stderr.count("exitcode: -9") + done.stderr.count("exitcode  : -9") >= len(deaths), done.stderr
    return done.returncode


# An epoch has 6 steps with 2 ranks, 4 steps with 3 ranks, and 3 steps with 4 ranks. Every third step is saved. More
# restarts than deaths are allowed, because gloo may fail to connect under load.
CASES = [
    (2, ["1 5 received"]),
    pytest.param(4, ["2 1 received", "0 2 trained", "3 5 received"], marks=pytest.mark.nightly),
    pytest.param(3, ["0 3 saved", "1 6 trained"], marks=pytest.mark.nightly),
    pytest.param(2, ["1 4 trained", "0 6 saved", "0 12 saved"], marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("ranks", "deaths"), CASES)
def test_each_sample_is_trained_on_once_after_kills(place: Path, tmp_path: Path, ranks: int, deaths: list[str]) -> None:
    assert run(place, tmp_path, ranks, deaths) == 0
    check_each_once(tmp_path)


@pytest.mark.nightly
def test_training_continues_with_another_number_of_ranks(place: Path, tmp_path: Path) -> None:
    assert run(place, tmp_path, 2, ["1 5 received"], restarts=0) == 1
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == 3
    # With 3 ranks, two steps complete the epoch. The checkpoint also contains one step of the next epoch.
    assert run(place, tmp_path, 3, ["2 8 received"], restarts=0) == 1
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == 6
    assert run(place, tmp_path, 1, []) == 0
    check_each_once(tmp_path)
