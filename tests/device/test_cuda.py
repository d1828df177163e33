"""On a GPU, the streams never race and never wait unnecessarily."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from dbloader.device import Normalize, Preparation
from dbloader.device.transfer import CudaTransfer
from dbloader.errors import OptionError
from dbloader.loading.prefetch import PrefetchLoader
from tests.support.sync_errors import synchronizing_is_an_error
from tests.support.tensors import MEAN, STD, pixels

pytestmark = pytest.mark.cuda

BYTES = 2**24  # size of a batch, which takes about a millisecond to copy
DELAY = 500_000_000  # clock cycles, about 0.25 s, and a hundred times as long as the other work of a test


# CudaTransfer follows three rules. Each subclass breaks one rule, and shows that the tests notice the broken rule. The
# tests assume only that the host queues a few operations within DELAY. So the tests first do everything that could make
# the host or the device wait: the first use of a kernel, and allocating device memory and pinned memory.


class NotWaitingForCopies(CudaTransfer):
    def await_copies(self, stream: torch.cuda.Stream, done: torch.cuda.Event) -> None:
        pass


class NotKeeping(CudaTransfer):
    def keep(self, leaf: Any, stream: torch.cuda.Stream) -> None:
        pass


class NotWaitingForTheConsumer(CudaTransfer):
    def await_consumer(self, stream: torch.cuda.Stream) -> None:
        pass


def delayed(cycles: int) -> None:
    """Keep the current stream busy without waiting for it."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def pinned(value: int) -> torch.Tensor:
    return torch.full((BYTES,), value, dtype=torch.uint8).pin_memory()


def total(batch: torch.Tensor) -> torch.Tensor:
    return batch.sum(dtype=torch.int64)


def value_read_at_once(transfer: CudaTransfer, value: int, delay: int) -> int:
    """Delay the copy stream, and return the value that a consumer then reads from a batch."""

    def late(batch: torch.Tensor) -> torch.Tensor:
        delayed(delay)
        return batch + 1

    batch = transfer.receive(transfer.start(pinned(value - 1), late))
    return int(total(batch)) // BYTES


@pytest.mark.parametrize(("kind", "right"), [(CudaTransfer, True), (NotWaitingForCopies, False)])
def test_consumer_reads_only_complete_batches(gpu: torch.device, kind: type[CudaTransfer], right: bool) -> None:
    transfer = kind(gpu)
    value_read_at_once(transfer, 3, 1)
    torch.cuda.synchronize()
    assert (value_read_at_once(transfer, 7, DELAY) == 7) is right


class Named(torch.Tensor):
    """A subclass, like tv_tensors.Image."""


def named(batch: torch.Tensor) -> torch.Tensor:
    return batch.as_subclass(Named)


@pytest.mark.parametrize("then", [None, named])
@pytest.mark.parametrize(("kind", "right"), [(CudaTransfer, True), (NotKeeping, False)])
def test_memory_of_a_dropped_batch_is_kept_until_work_on_it_ends(
    gpu: torch.device, kind: type[CudaTransfer], right: bool, then: Any
) -> None:
    transfer = kind(gpu)
    first, second = pinned(7), pinned(9)
    transfer.receive(transfer.start(first, then))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # afterwards the dropped batch is the only free memory of this stream
    total(torch.zeros(BYTES, dtype=torch.uint8, device=gpu)).item()
    delayed(1)
    batch = transfer.receive(transfer.start(first, then))
    place = batch.data_ptr()
    delayed(DELAY)
    read = total(batch)
    del batch
    later = transfer.receive(transfer.start(second, then))
    assert (later.data_ptr() != place) is right
    assert int(read) // BYTES == (7 if right else 9)


class Hidden:
    """An object that is on the device, and hides its memory."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def to(self, device: torch.device) -> "Hidden":
        return self


def test_consumer_may_drop_an_object_with_unknown_memory(gpu: torch.device) -> None:
    transfer = CudaTransfer(gpu)
    batches = [pinned(value) for value in (7, 9, 9)]
    total(transfer.receive(transfer.start(batches[0], Hidden)).values).item()
    delayed(1)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    read = []
    for batch in batches:
        waiting = transfer.start(batch, Hidden)
        delayed(DELAY)
        read.append(total(transfer.receive(waiting).values))
    assert [int(value) // BYTES for value in read] == [7, 9, 9]


def test_tensors_that_the_consumers_stream_still_fills_arrive_complete(gpu: torch.device) -> None:
    with torch.cuda.stream(torch.cuda.Stream(gpu)):  # type: ignore[no-untyped-call]
        batch = torch.zeros(BYTES, dtype=torch.uint8, device=gpu)
        loader = PrefetchLoader([batch], "cuda", preparation=lambda images: images + 1)
        for expected in (1, 8):  # the first iteration loads kernels, which may make the host wait
            [sums] = [total(received) for received in loader]
            assert int(sums) // BYTES == expected
            delayed(DELAY)
            batch.fill_(7)


def test_captured_normalize_keeps_its_constants(gpu: torch.device) -> None:
    images, normalize = pixels(8, 3, 64, 48).to(gpu), Normalize(MEAN, STD)
    expected = normalize(images)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = normalize(images)
    kept = [torch.full((2, 3), 7.0).pin_memory() for _ in range(100)]  # reuses pinned memory that the capture dropped
    graph.replay()
    assert torch.equal(result, expected)
    assert len(kept) == 100


class TwoBuffers:
    """A preparation that alternates between two buffers, like a captured CUDA graph."""

    def __init__(self, gpu: torch.device) -> None:
        self.buffers = [torch.zeros(BYTES, dtype=torch.uint8, device=gpu) for _ in range(2)]

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        self.buffers.reverse()
        return self.buffers[0].copy_(batch)


@pytest.mark.parametrize(("kind", "right"), [(CudaTransfer, True), (NotWaitingForTheConsumer, False)])
def test_memory_is_overwritten_only_after_the_consumers_earlier_work(
    gpu: torch.device, kind: type[CudaTransfer], right: bool
) -> None:
    transfer, buffers = kind(gpu), TwoBuffers(gpu)
    batches = [pinned(value) for value in (7, 8, 9)]
    for batch in batches:
        total(transfer.receive(transfer.start(batch, buffers))).item()
    delayed(1)
    torch.cuda.synchronize()
    waiting = [transfer.start(batch, buffers) for batch in batches[:2]]
    first = transfer.receive(waiting[0])
    delayed(DELAY)
    read = total(first)
    transfer.receive(waiting[1])
    transfer.start(batches[2], buffers)
    assert int(read) // BYTES == (7 if right else 9)


def test_consumer_on_its_own_stream_gets_complete_batches(gpu: torch.device) -> None:
    batches = [torch.full((BYTES,), number, dtype=torch.uint8) for number in range(20)]
    with torch.cuda.stream(torch.cuda.Stream(gpu)):  # type: ignore[no-untyped-call]
        sums = [total(batch) for batch in PrefetchLoader(PrefetchLoader(batches, "cuda"), "cuda")]
        assert [value.item() for value in sums] == [number * BYTES for number in range(20)]


@pytest.mark.parametrize("depth", [1, 3])
def test_loader_prepares_equal_batches_on_gpu_and_cpu(gpu: torch.device, depth: int) -> None:
    batches = [(pixels(count, height=64, width=48), torch.arange(count)) for count in [16] * 6 + [5]]
    normalized = PrefetchLoader(batches, "cuda", depth, preparation=Normalize(MEAN, STD))
    for (images, labels), (given, _) in zip(normalized, batches, strict=True):
        assert images.device == labels.device == gpu
        assert torch.equal(images.cpu(), Normalize(MEAN, STD)(given))
    for (images, _), (given, _) in zip(PrefetchLoader(batches, "cuda", depth), batches, strict=True):
        assert torch.equal(images.cpu(), given)


def test_tensors_of_several_memory_blocks_arrive(gpu: torch.device) -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    batch = (torch.eye(3).to_sparse(), packed, torch.nn.Parameter(torch.ones(2)), torch.ones(3, device=gpu))
    sparse, moved, parameter, there = next(iter(PrefetchLoader([batch], device="cuda")))
    assert [part.device for part in (sparse, moved.data, parameter, there)] == [gpu] * 4
    assert sparse.to_dense().sum().item() == 3.0
    assert moved.data.sum().item() == 5.0
    assert moved.batch_sizes.device.type == "cpu"


@pytest.mark.usefixtures("gpu")
def test_tensors_of_any_layout_keep_their_values() -> None:
    whole = torch.arange(24.0).reshape(1, 2, 3, 4)
    batch = (
        whole.to(memory_format=torch.channels_last),
        whole.transpose(1, 3),
        whole[..., ::2],
        torch.ones(()).expand(5),
        torch.empty(0, 3),
    )
    moved = next(iter(PrefetchLoader([batch], device="cuda")))
    assert [torch.equal(part.cpu(), given) for part, given in zip(moved, batch, strict=True)] == [True] * 5
    assert [part.stride() for part in moved[:2]] == [part.stride() for part in batch[:2]]


def test_epoch_after_an_abandoned_or_failed_epoch_is_complete(gpu: torch.device) -> None:
    batches = [torch.full((BYTES,), number, dtype=torch.uint8) for number in range(6)]
    loader = PrefetchLoader[Any](batches, device="cuda", depth=3)
    for _ in loader:
        break
    assert [int(total(batch)) // BYTES for batch in loader] == list(range(6))

    def failing() -> Iterator[torch.Tensor]:
        yield batches[5]
        raise ValueError("no further batch")

    iterator = iter(PrefetchLoader(failing(), device="cuda"))
    assert int(total(next(iterator))) // BYTES == 5
    with pytest.raises(ValueError, match="no further batch"):
        next(iterator)
    assert next(iter(loader)).device == gpu
    loader.close()


def test_loader_does_not_change_the_current_device_and_stream(gpu: torch.device) -> None:
    stream = torch.cuda.current_stream()
    list(PrefetchLoader([torch.zeros(2)], device=f"cuda:{torch.cuda.device_count() - 1}"))
    assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (gpu.index, stream)


@pytest.mark.usefixtures("gpu")
def test_loader_feeds_a_gpu_that_is_not_current() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is only one CUDA device")
    batches = [torch.full((BYTES,), number, dtype=torch.uint8) for number in range(20)]
    source = [batch.to("cuda:0") if number % 2 else batch for number, batch in enumerate(batches)]
    sums = []
    for batch in PrefetchLoader(source, device="cuda:1"):
        assert batch.device == torch.device("cuda:1")
        sums.append(total(batch))
    assert [value.item() for value in sums] == [number * BYTES for number in range(20)]


def test_missing_gpu_is_an_error(gpu: torch.device) -> None:
    count = torch.cuda.device_count()
    assert count > gpu.index
    with pytest.raises(OptionError, match=f"torch finds {count} CUDA devices here, got device='cuda:{count}'"):
        PrefetchLoader([], device=f"cuda:{count}")


def run_through(loader: PrefetchLoader[Any]) -> list[torch.Tensor]:
    """Use each batch without waiting for the device."""
    return [batch[0].sum() for batch in loader]


def epoch(*preparations: torch.nn.Module) -> PrefetchLoader[Any]:
    batches = [(torch.full((8, 3, 64, 64), 5, dtype=torch.uint8), torch.arange(8))] * 20
    preparation = Preparation(Normalize(MEAN, STD), *preparations)
    return PrefetchLoader(batches, device="cuda", preparation=preparation)


@pytest.mark.usefixtures("gpu")
def test_neither_loader_nor_consumer_waits_for_the_device() -> None:
    loader = epoch()
    run_through(loader)  # CUDA may wait the first time that a kernel is loaded or memory is pinned
    torch.cuda.synchronize()
    with synchronizing_is_an_error():
        run_through(loader)
        with pytest.raises(RuntimeError, match="synchronizing"):
            list(PrefetchLoader([torch.ones(1)], device="cuda", preparation=lambda images: images.item()))
    assert torch.cuda.get_sync_debug_mode() == 0
