"""Fixtures of the tests of devices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    yield torch.device("cuda", torch.cuda.current_device())
    torch.cuda.synchronize()
