"""On a GPU, RandomErasing erases what it erases on a CPU, and waits for nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dbloader.device import Normalize, Preparation, RandomErasing
from dbloader.errors import LoaderError
from dbloader.sampling.rng import SampleRNG
from tests.device.test_cuda import epoch, run_through
from tests.support.sync_errors import synchronizing_is_an_error
from tests.support.tensors import DTYPES, MEAN, STD, pixels

pytestmark = pytest.mark.cuda

MODES: tuple[Any, ...] = ("const", "rand", "pixel")


def test_erasing_refuses_to_be_captured(gpu: torch.device) -> None:
    images = torch.zeros(2, 3, 8, 8, device=gpu)
    RandomErasing(1.0)(images)
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        images.add(1)  # PyTorch warns of an empty graph
        with pytest.raises(LoaderError, match="each replay of a CUDA graph would erase the same rectangles"):
            RandomErasing(1.0)(images)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_gpu_and_cpu_preparation_give_identical_bits(
    gpu: torch.device, mode: Any, dtype: torch.dtype, channels_last: bool
) -> None:
    erasing = RandomErasing(0.7, mode=mode, max_count=3)
    prepared = Preparation(Normalize(MEAN, STD, dtype=dtype, channels_last=channels_last), erasing)
    images, given = pixels(16, 3, 64, 48), SampleRNG(1, 2, range(16))
    expected, result = prepared(images, rng=given), prepared(images.to(gpu), rng=given)
    assert (result.device, result.stride()) == (gpu, expected.stride())
    assert torch.equal(result.cpu(), expected)


@pytest.mark.usefixtures("gpu")
def test_erasing_does_not_wait_for_the_device() -> None:
    loader = epoch(*(RandomErasing(1, mode=mode, max_count=2) for mode in MODES))
    run_through(loader)  # CUDA may wait the first time that a kernel is loaded or memory is pinned
    torch.cuda.synchronize()
    with synchronizing_is_an_error():
        run_through(loader)
