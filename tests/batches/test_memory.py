"""Memory of batches is used again, and never while somebody still has it."""

from __future__ import annotations

import gc
import pickle
import threading

import numpy as np
import torch

from dbloader.batches.memory import BatchMemory

SHAPE = (4, 8, 8, 3)


def test_memory_is_used_again_once_its_tensor_is_gone() -> None:
    memory = BatchMemory()
    tensor = memory.empty(SHAPE)
    assert (tensor.shape, tensor.dtype) == (SHAPE, torch.uint8)
    address = tensor.data_ptr()
    del tensor
    assert memory.empty(SHAPE).data_ptr() == address
    assert memory.empty((2, 8, 8, 3)).data_ptr() == address, "a smaller batch fits too"


def test_memory_is_nobody_elses_while_anything_shares_it() -> None:
    memory = BatchMemory()
    tensor = memory.empty(SHAPE)
    keepers = [
        tensor.permute(0, 3, 1, 2),
        tensor.numpy()[1:],
        tensor[2],
        tensor.untyped_storage(),
        tensor.numpy().data,
    ]
    address = tensor.data_ptr()
    del tensor
    while keepers:
        taken = memory.empty(SHAPE)
        assert taken.data_ptr() != address
        del taken
        keepers.pop()
        gc.collect()
    blocks = {memory.empty(SHAPE).data_ptr() for _ in range(1)}
    assert blocks == {address}, "the last that was given back comes first"


def test_a_larger_batch_gets_new_memory() -> None:
    memory = BatchMemory()
    del (small := [memory.empty((1, 2, 2, 3))])[:]
    assert not small
    large = memory.empty(SHAPE)
    large.fill_(7)
    assert large.sum() == 7 * 4 * 8 * 8 * 3


def test_a_list_of_all_batches_holds_different_ones() -> None:
    memory = BatchMemory()
    tensors = [memory.empty(SHAPE).fill_(number) for number in range(20)]
    assert [int(tensor.max()) for tensor in tensors] == list(range(20))
    assert len({tensor.data_ptr() for tensor in tensors}) == 20


def test_few_blocks_wait_to_be_used_again() -> None:
    memory = BatchMemory()
    tensors = [memory.empty(SHAPE) for _ in range(20)]
    before = {tensor.data_ptr() for tensor in tensors}
    tensors.clear()
    again = [memory.empty(SHAPE) for _ in range(4)]
    assert {tensor.data_ptr() for tensor in again} <= before
    assert len(memory._free) == 0


def test_it_is_pickled_empty() -> None:
    memory = BatchMemory()
    del (tensors := [memory.empty(SHAPE)])[:]
    assert not tensors
    assert len(pickle.dumps(memory)) < 200
    assert pickle.loads(pickle.dumps(memory)).empty(SHAPE).shape == SHAPE  # noqa: S301 - what was pickled here


def test_threads_share_it() -> None:
    memory = BatchMemory()
    wrong: list[int] = []

    def use(number: int) -> None:
        for _ in range(500):
            tensor = memory.empty(SHAPE)
            tensor.fill_(number)
            if not np.array_equal(tensor.numpy(), np.full(SHAPE, number, np.uint8)):
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
