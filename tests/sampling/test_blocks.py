"""The block shuffle: few places at a time, all of them completely, in random order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbloader.errors import OptionError
from dbloader.sampling import BlockShuffleSampler


def order(length: int, block_size: int, buffer_blocks: int, seed: int = 0, epoch: int = 0) -> list[int]:
    sampler = BlockShuffleSampler(range(length), block_size, buffer_blocks, 1, 0, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def touched(indices: list[int], block_size: int) -> list[int]:
    """Return the blocks in the order in which they are first touched."""
    return list(dict.fromkeys(index // block_size for index in indices))


@given(st.integers(0, 400), st.integers(1, 50), st.integers(1, 20), st.integers())
def test_all_indices_come_once_one_buffer_of_whole_blocks_after_the_other(
    length: int, block_size: int, buffer_blocks: int, seed: int
) -> None:
    indices = order(length, block_size, buffer_blocks, seed)
    assert sorted(indices) == list(range(length))
    blocks = touched(indices, block_size)
    for begin in range(0, len(blocks), buffer_blocks):
        buffer = blocks[begin : begin + buffer_blocks]
        size = sum(min(block_size, length - block * block_size) for block in buffer)
        # Nothing else comes before all of these blocks have come.
        assert sorted(indices[:size]) == sorted(
            index for block in buffer for index in range(block * block_size, min((block + 1) * block_size, length))
        )
        del indices[:size]


@pytest.mark.parametrize("buffer_blocks", [1, 3])
def test_each_block_is_equally_often_in_each_place(buffer_blocks: int) -> None:
    # 5 blocks, of which the last has 1 index instead of 4: it must not come late or early for that.
    counts = np.zeros((5, 5))
    for epoch in range(1000):
        indices = order(17, 4, buffer_blocks, epoch=epoch)
        buffers: Any = touched(indices, 4)
        for begin in range(0, 5, buffer_blocks):
            for block in buffers[begin : begin + buffer_blocks]:
                size = min(buffer_blocks, 5 - begin)
                counts[block, begin : begin + size] += 1 / size
    places = counts[:, ::buffer_blocks]  # one of each buffer
    expected = 1000 / 5
    assert np.abs(places - expected).max() < 5 * expected**0.5


def test_indices_are_shuffled_evenly_over_their_buffer() -> None:
    # One buffer of everything is a shuffle of everything.
    counts = np.zeros((10, 10))
    for epoch in range(1000):
        counts[np.arange(10), order(10, 3, 4, epoch=epoch)] += 1
    chi_square = ((counts - 100) ** 2 / 100).sum()
    assert abs(chi_square - 81) < 5 * (2 * 81) ** 0.5


@pytest.mark.slow
def test_each_buffer_is_shuffled_in_its_own_way() -> None:
    indices = np.array(order(8000, 40, 10)).reshape(20, 400)
    ranks = np.array([[touched(list(buffer), 40).index(index // 40) for index in buffer] for buffer in indices])
    correlations: Any = np.corrcoef(np.argsort(np.argsort(indices)))
    assert np.abs(correlations[np.triu_indices(20, 1)]).max() < 5 / 400**0.5
    assert len({tuple(rank) for rank in ranks.tolist()}) == 20


def test_sizes_beyond_the_dataset_are_allowed() -> None:
    assert sorted(order(10, 100, 100)) == list(range(10))
    assert sorted(order(10, 1, 10**9)) == list(range(10))


@pytest.mark.parametrize(
    ("sizes", "kind", "message"),
    [
        ((0, 4), OptionError, "block_size must be at least 1, got 0"),
        ((4, -5), OptionError, "buffer_blocks must be at least 1, got -5"),
        ((4.0, 4), TypeError, "block_size must be an int, got 4.0"),
        ((4, "4"), TypeError, "buffer_blocks must be an int, got '4'"),
    ],
)
def test_wrong_sizes_are_refused(sizes: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        BlockShuffleSampler(range(5), *sizes)
