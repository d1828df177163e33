"""The memory of a batch is reused after the last reference to the batch is gone."""

from __future__ import annotations

import gc

import torch

from dbloader.device.memory import BatchMemory

SHAPE = (4, 8, 8, 3)


def test_memory_of_a_deleted_tensor_is_reused_for_batches_that_fit() -> None:
    memory = BatchMemory()
    tensor = memory.empty(SHAPE)
    assert (tensor.shape, tensor.dtype) == (SHAPE, torch.uint8)
    address = tensor.data_ptr()
    del tensor
    assert memory.empty(SHAPE).data_ptr() == address
    assert memory.empty((2, 8, 8, 3)).data_ptr() == address, "a smaller batch must reuse the memory"
    large = memory.empty((9, 8, 8, 3)).fill_(7)
    assert large.sum() == 7 * 9 * 8 * 8 * 3


def test_memory_is_not_reused_while_anything_shares_it() -> None:
    memory = BatchMemory()
    tensor = memory.empty(SHAPE)
    keepers = [tensor.permute(0, 3, 1, 2), tensor.numpy()[1:], tensor.untyped_storage(), tensor.numpy().data]
    address = tensor.data_ptr()
    del tensor
    while keepers:
        assert memory.empty(SHAPE).data_ptr() != address
        keepers.pop()
    gc.collect()
    assert memory.empty(SHAPE).data_ptr() == address
