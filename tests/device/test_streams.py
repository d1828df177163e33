"""CudaTransfer calls CUDA in the right order. A stand-in for torch.cuda records the calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from dbloader.device.transfer import CudaTransfer, is_recordable

CUDA = torch.device("cuda:1")


class Mover:
    """An object with a method ``to``, but without ``record_stream``."""

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def to(self, device: Any) -> Mover:
        return Mover(device)


class Event:
    def __init__(self, name: str) -> None:
        self.name = name


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
    """Stands in for torch.cuda, and logs all calls in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.current = self.consumer = Stream("consumer", self.log)
        self.sides = 0
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        monkeypatch.setattr(torch.cuda, "Stream", self.new_stream)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)

    def new_stream(self, device: torch.device) -> Stream:
        self.sides += 1
        return Stream("side", self.log)

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


def test_failed_preparation_restores_the_stream(fake_cuda: Cuda) -> None:
    def fail(batch: Any) -> None:
        raise ValueError("no batch like that")

    transfer = CudaTransfer(CUDA)
    with pytest.raises(ValueError, match="no batch like that"):
        transfer.start([Graph("batch", fake_cuda)], fail)
    assert transfer.receive(transfer.start([Graph("next", fake_cuda)]))[0].name == "next"


@pytest.mark.parametrize(
    ("leaf", "recordable"),
    [
        (torch.zeros(2), True),
        (torch.zeros(2).expand(3, 2), True),
        (pack_sequence([torch.ones(3), torch.ones(2)]), True),
        (torch.eye(2).to_sparse(), False),
        (torch.nn.Parameter(torch.ones(2)), False),
        (Mover(), False),
    ],
)
def test_only_plain_tensors_and_packed_sequences_are_recordable(leaf: Any, recordable: bool) -> None:
    assert is_recordable(leaf) is recordable
