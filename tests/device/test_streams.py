"""CudaTransfer calls CUDA in the right order. A stand-in for torch.cuda records the calls."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.masked import masked_tensor
from torch.nn.utils.rnn import pack_sequence
from typing_extensions import override

from dbloader.device import transfer
from dbloader.device.transfer import CudaTransfer, find_memory
from dbloader.loading.prefetch import PrefetchLoader

CUDA = torch.device("cuda:1")


class Mover:
    """An object with a method ``to``, but without ``record_stream``."""

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def to(self, device: Any) -> Mover:
        return Mover(device)


class Placed(torch.Tensor):
    """A subclass, like tv_tensors.Image, that claims to be on the device, and logs what is done with it."""

    calls: list[str]
    is_cuda = True

    @override
    def record_stream(self, stream: Any) -> None:
        self.calls.append(f"subclass kept for {stream.name}")

    @override
    def to(self, *args: Any, **options: Any) -> Placed:
        return self


class Event:
    is_past = True

    def __init__(self, name: str) -> None:
        self.name = name

    def query(self) -> bool:
        return self.is_past


class Stream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log
        self.events = 0

    def record_event(self) -> Event:
        self.events += 1
        event = Event(f"{self.name} {self.events}")
        self.log.append(f"{event.name} recorded")
        return event

    def wait_event(self, event: Event) -> None:
        self.log.append(f"{self.name} waits for {event.name}")

    def wait_stream(self, stream: Stream) -> None:
        self.log.append(f"{self.name} waits for all of {stream.name}")


class Graph:
    """Is pinned, moved and recorded as a whole, like a graph of PyTorch Geometric."""

    is_cuda = False

    def __init__(self, name: str, cuda: Cuda, *, is_cuda: bool = False) -> None:
        self.name = name
        self.cuda = cuda
        self.is_cuda = is_cuda

    def pin_memory(self) -> Graph:
        self.cuda.log.append(f"{self.name} pinned")
        return Graph(self.name, self.cuda)

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Graph:
        self.cuda.log.append(f"{self.name} to {device} on {self.cuda.current.name}{' at leisure' * non_blocking}")
        return Graph(self.name, self.cuda, is_cuda=True)

    def record_stream(self, stream: Stream) -> None:
        self.cuda.log.append(f"{self.name} kept for {stream.name}")


class Cuda:
    """Stands in for torch.cuda with two devices, of which cuda:0 is current, and logs all calls in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.current = self.consumer = Stream("consumer", self.log)
        self.elsewhere = Stream("cuda:0", self.log)
        self.sides = 0
        monkeypatch.setattr(torch.cuda, "current_stream", self.current_stream)
        monkeypatch.setattr(torch.cuda, "Stream", self.new_stream)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)

    def current_stream(self, device: Any = None) -> Stream:
        return self.current if device == CUDA else self.elsewhere

    def new_stream(self, device: Any = None) -> Stream:
        self.sides += 1
        return Stream("side" if device == CUDA else "side of cuda:0", self.log)

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.current = stream
        yield
        self.current = self.consumer

    def happened(self) -> list[str]:
        log = self.log[:]
        self.log.clear()
        return log


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


def test_streams_wait_for_each_other_and_keep_memory_in_use(fake_cuda: Cuda) -> None:
    transfer = CudaTransfer(CUDA)
    in_transit = transfer.start([Graph("batch", fake_cuda), "a.jpg"])
    assert fake_cuda.happened() == ["batch pinned", "batch to cuda:1 on side at leisure", "side 1 recorded"]
    batch, name = transfer.receive(in_transit)
    assert fake_cuda.happened() == ["consumer 1 recorded", "consumer waits for side 1", "batch kept for consumer"]
    assert (batch.is_cuda, name) == (True, "a.jpg")
    transfer.start([Graph("next", fake_cuda)])
    assert fake_cuda.happened()[0] == "side waits for consumer 1"
    transfer.start([Graph("third", fake_cuda)])
    assert fake_cuda.happened()[0] == "third pinned"
    assert fake_cuda.sides == 1


def test_preparation_runs_on_the_copy_stream_and_keeps_its_results(fake_cuda: Cuda) -> None:
    def halve(batch: list[Graph]) -> tuple[Graph, int]:
        fake_cuda.log.append(f"{batch[0].name} halved on {fake_cuda.current.name}")
        return Graph("half", fake_cuda, is_cuda=True), 1

    transfer = CudaTransfer(CUDA)
    in_transit = transfer.start([Graph("whole", fake_cuda)], halve)
    assert fake_cuda.happened()[1:] == ["whole to cuda:1 on side at leisure", "whole halved on side", "side 1 recorded"]
    assert transfer.receive(in_transit)[1] == 1
    assert fake_cuda.happened()[1:] == ["consumer waits for side 1", "half kept for consumer"]


def test_cpu_results_of_a_preparation_move_on_the_stream_of_the_consumer(fake_cuda: Cuda) -> None:
    transfer = CudaTransfer(CUDA)
    in_transit = transfer.start([Graph("batch", fake_cuda)], lambda batch: [Graph("other", fake_cuda)])
    fake_cuda.happened()
    assert transfer.receive(in_transit)[0].is_cuda
    assert fake_cuda.happened()[2:] == ["other to cuda:1 on consumer"]


def test_copy_stream_awaits_and_keeps_batches_made_on_the_device(fake_cuda: Cuda) -> None:
    transfer = CudaTransfer(CUDA)
    transfer.start([Graph("made", fake_cuda, is_cuda=True)])
    assert fake_cuda.happened()[:2] == ["side waits for all of consumer", "made kept for side"]


def test_objects_without_record_stream_move_on_the_stream_of_the_consumer(fake_cuda: Cuda) -> None:
    transfer = CudaTransfer(CUDA)
    in_transit = transfer.start([Mover("cpu")])
    assert in_transit.batch[0].device == "cpu"
    assert transfer.receive(in_transit)[0].device == CUDA


def test_side_stream_waits_for_what_the_consumer_queued_before_the_iteration(
    fake_cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "create_transfer", lambda device: CudaTransfer(CUDA))
    loader = PrefetchLoader[Any]([Graph("filled", fake_cuda, is_cuda=True)], "cuda", 1)
    iterator = iter(loader)
    fake_cuda.happened()
    next(iterator)
    log = fake_cuda.happened()
    assert log[:3] == ["consumer 2 recorded", "side waits for consumer 1", "side waits for consumer 2"]
    assert log.index("filled to cuda:1 on side at leisure") > 2
    loader.close()


def test_subclass_made_by_a_preparation_is_kept_for_the_consumer(fake_cuda: Cuda) -> None:
    Placed.calls = fake_cuda.log
    made = torch.ones(3).as_subclass(Placed)
    made.mask = torch.ones(3).as_subclass(Placed)  # type: ignore[attr-defined]
    moving = CudaTransfer(CUDA)
    in_transit = moving.start([Graph("batch", fake_cuda)], lambda batch: [made])
    fake_cuda.happened()
    assert moving.receive(in_transit)[0] is made
    assert fake_cuda.happened()[2:] == ["subclass kept for consumer"] * 2


class Hidden:
    """An object that is on the device, and hides its memory."""

    def __init__(self, values: list[int]) -> None:
        self.values = values

    def to(self, device: Any) -> Hidden:
        return self


def test_object_with_unknown_memory_is_copied_and_outlives_its_copy(
    fake_cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = CudaTransfer(CUDA)
    made = [Hidden([1, 2])]
    alive = weakref.ref(made[0])
    received = moving.receive(moving.start([Graph("batch", fake_cuda)], lambda batch: [made.pop()]))
    assert fake_cuda.happened()[-1] == "consumer 2 recorded"  # after the copy
    assert received[0].values == [1, 2]
    assert received[0] is not alive()
    monkeypatch.setattr(Event, "is_past", False)
    moving.receive(moving.start([]))
    gc.collect()
    assert alive() is not None
    monkeypatch.setattr(Event, "is_past", True)
    moving.receive(moving.start([]))
    gc.collect()
    assert alive() is None


def test_failed_preparation_restores_the_stream(fake_cuda: Cuda) -> None:
    def fail(batch: Any) -> None:
        raise ValueError("no batch like that")

    transfer = CudaTransfer(CUDA)
    with pytest.raises(ValueError, match="no batch like that"):
        transfer.start([Graph("batch", fake_cuda)], fail)
    assert transfer.receive(transfer.start([Graph("next", fake_cuda)]))[0].name == "next"


def pointers(leaf: Any) -> set[int] | None:
    memory = find_memory(leaf)
    return None if memory is None else {part.data_ptr() for part in memory}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:The PyTorch API of nested tensors")
def test_all_memory_of_a_tensor_is_found() -> None:
    whole = torch.arange(4.0)
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    named: Any = torch.ones(2).as_subclass(Placed)
    named.mask = torch.eye(2).to_sparse()
    sparse, rows = torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr()
    jagged: Any = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    assert pointers(whole) == pointers(whole.expand(3, 4)) == pointers(torch.nn.Parameter(whole)) == {whole.data_ptr()}
    assert pointers(packed) == {packed.data.data_ptr(), packed.batch_sizes.data_ptr()}
    mask = named.mask.coalesce()
    assert pointers(named) == {named.data_ptr(), *(pointers(named.mask) or ())}
    assert len(pointers(named.mask) or ()) == 2 == len(pointers(mask) or ())
    assert pointers(sparse) == {sparse.indices().data_ptr(), sparse.values().data_ptr()}
    assert pointers(rows) == {rows.crow_indices().data_ptr(), rows.col_indices().data_ptr(), rows.values().data_ptr()}
    assert {jagged.values().data_ptr(), jagged.offsets().data_ptr()} <= (pointers(jagged) or set())
    assert pointers(nested) == {nested.values().data_ptr()}
    assert pointers(torch.zeros(0)) == {0}


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_memory_of_objects_that_hide_it_is_unknown() -> None:
    assert find_memory(Mover()) is None
    assert find_memory(masked_tensor(torch.ones(2), torch.tensor([True, False]))) is None
