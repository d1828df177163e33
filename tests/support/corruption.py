"""Look for batches that a consumer reads wrong, while random delays on both streams provoke races.

All bytes of a batch have one value, so its sum shows whether other bytes were read. scripts/gpu-check runs this on a
GPU. A run proves something only if it detects the races of a loader that breaks a rule of docs/notes/cuda-race.md.
"""

import contextlib
import random
import time
from collections import deque
from typing import Any
from unittest import mock

import torch

from dbloader.device import Normalize
from dbloader.device.transfer import CudaTransfer
from dbloader.loading.prefetch import PrefetchLoader

SHAPE, SMALL = (16, 4, 256, 256), (2, 4, 8, 8)  # of a batch: 4 MiB on a GPU
DEPTHS = (1, 2, 3)
EPOCH = 100
VALUES = 31  # different batches; a prime number, so no number of buffers divides it
AHEAD = 16  # most batches that the host runs ahead of the device
DELAYED, CYCLES = 1 / 8, 3_000_000  # share of batches before which a stream sleeps, and its longest sleep: 1.5 ms
PAUSED, PAUSE_S = 1 / 2, 0.0005  # the same for the loader's thread; meanwhile the consumer drops batches


class Plain:
    """Batches that the preparation puts into new memory, and batches that it returns unchanged."""

    unsafe = ("keep", "await_copies")  # steps of CudaTransfer without which some sums must be wrong
    holds = True  # whether the consumer may keep a batch when it asks for the next

    def __init__(self, device: torch.device, shape: tuple[int, ...], depth: int) -> None:
        self._random = random.Random(depth)
        self._device = device

    def prepare(self, images: torch.Tensor) -> torch.Tensor:
        """Prepare a batch in the loader's thread."""
        if self._random.random() < PAUSED:
            time.sleep(self._random.uniform(0, PAUSE_S))
        delay(self._random, self._device)
        return self.fill(images)

    def fill(self, images: torch.Tensor) -> torch.Tensor:
        return images + 0 if self._random.random() < 0.5 else images

    def expect(self, images: torch.Tensor) -> torch.Tensor:
        """Return a number that depends on all bytes of a batch."""
        return images.sum(dtype=torch.float64)

    def read(self, images: torch.Tensor) -> torch.Tensor:
        """Compute this number on the consumer's stream."""
        return self.expect(images)


class Tagged(torch.Tensor):
    """A subclass without anything of its own."""


class Subclass(Plain):
    """Batches whose tensors are of a subclass of Tensor."""

    def fill(self, images: torch.Tensor) -> torch.Tensor:
        return super().fill(images).as_subclass(Tagged)


class Buffers(Plain):
    """Batches in one buffer more than the loader's depth, used in turn."""

    unsafe = ("await_consumer", "await_copies")
    holds = False

    def __init__(self, device: torch.device, shape: tuple[int, ...], depth: int) -> None:
        super().__init__(device, shape, depth)
        self.buffers = deque(torch.zeros(shape, dtype=torch.uint8, device=device) for _ in range(depth + 1))

    def fill(self, images: torch.Tensor) -> torch.Tensor:
        self.buffers.rotate(1)
        return self.buffers[0].copy_(images)


class Graph(Buffers):
    """Buffers that are the inputs of captured CUDA graphs, which normalize a batch."""

    def __init__(self, device: torch.device, shape: tuple[int, ...], depth: int) -> None:
        super().__init__(device, shape, depth)
        self._normalize = Normalize((0.5,) * shape[1], (0.25,) * shape[1])
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        if device.type == "cuda":
            self._capture()

    def _capture(self) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # the first calls load kernels, which is forbidden in a capture
            for _ in range(3):
                self.expect(self.buffers[0])
        torch.cuda.current_stream().wait_stream(side)
        for buffer in self.buffers:  # before the loader runs, because its thread's calls would end a capture
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = self.expect(buffer)
            self._graphs[buffer.data_ptr()] = graph, result

    def expect(self, images: torch.Tensor) -> torch.Tensor:
        return super().expect(self._normalize(images))

    def read(self, images: torch.Tensor) -> torch.Tensor:
        if not self._graphs:
            return self.expect(images)
        graph, result = self._graphs[images.data_ptr()]
        graph.replay()
        return result


KINDS: dict[str, type[Plain]] = {"plain": Plain, "subclass": Subclass, "buffers": Buffers, "graph": Graph}


def delay(numbers: random.Random, device: torch.device) -> None:
    """Sometimes let the current stream sleep."""
    if device.type == "cuda" and numbers.random() < DELAYED:
        torch.cuda._sleep(int(numbers.uniform(0, CYCLES)))  # type: ignore[no-untyped-call]


def examine(name: str, device: torch.device, most: int, limit_s: float) -> tuple[str, str]:
    """Run one kind of batches with all rules, and on a GPU once more without each rule that it needs.

    Returns:
        What was found, and "passes", "fails" or "void"; "" if the device cannot decide.
    """
    if device.type != "cuda":
        return judge(*wrong_sums(KINDS[name], device, most, limit_s, SMALL), {})
    found = wrong_sums(KINDS[name], device, most, limit_s / 2, SHAPE)
    unsafe = KINDS[name].unsafe
    runs = {step: wrong_sums(KINDS[name], device, most, limit_s / 2 / len(unsafe), SHAPE, step) for step in unsafe}
    return judge(*found, {step: wrong for step, (_, wrong) in runs.items()})


def judge(read: int, wrong: int, without: dict[str, int]) -> tuple[str, str]:
    """Describe a run. ``without`` is {step: number of batches that were read wrong in a run without this step}."""
    found = f"{wrong:,} of {read:,} batches were read wrong"
    found += "".join(f"; without {step}: {count:,}" for step, count in without.items())
    if wrong or not read:
        return found, "fails"
    if not without:
        return f"{found}; a CPU has no streams, so this shows only that the run itself works", ""
    return (found, "passes") if all(without.values()) else (f"{found}: cannot see corruption", "void")


def wrong_sums(
    kind: type[Plain], device: torch.device, most: int, limit_s: float, shape: tuple[int, ...], without: str = ""
) -> tuple[int, int]:
    """Read batches for some time, without one step of CudaTransfer if it is named.

    Returns:
        The number of batches that were read, ``most`` if the time was enough, and of those that were read wrong.
    """
    hosts = [torch.full(shape, value + 1, dtype=torch.uint8) for value in range(VALUES)]
    if device.type == "cuda":
        hosts[::2] = [host.pin_memory() for host in hosts[::2]]
    left_out = mock.patch.object(CudaTransfer, without, _do_nothing) if without else contextlib.nullcontext()
    read, wrong = 0, 0
    with left_out:
        for depth in DEPTHS:
            done = _run(
                kind(device, shape, depth), hosts, device, depth, -(-most // len(DEPTHS)), limit_s / len(DEPTHS)
            )
            read, wrong = read + done[0], wrong + done[1]
    return read, wrong


def _do_nothing(*_: object) -> None:
    """Replace a step. A Mock would keep the batches that it is called with, and hide that nothing else keeps them."""


def _run(
    data: Plain, hosts: list[torch.Tensor], device: torch.device, depth: int, most: int, limit_s: float
) -> tuple[int, int]:
    numbers, began = random.Random(depth), time.monotonic()
    right = torch.stack([data.expect(host.to(device)) for host in hosts])
    sums = torch.zeros(most, dtype=torch.float64, device=device)
    values: list[int] = []
    held: deque[Any] = deque(maxlen=3)
    events: deque[torch.cuda.Event] = deque()
    source = [hosts[position % VALUES] for position in range(EPOCH)]
    with PrefetchLoader(source, device, depth, preparation=data.prepare) as loader:
        while len(values) < most and time.monotonic() - began < limit_s:
            last = numbers.choice((EPOCH, numbers.randrange(1, EPOCH)))  # the consumer leaves some epochs early
            position = 0  # not enumerate(), which would keep the batch
            for batch in loader:
                delay(numbers, device)
                sums[len(values)].copy_(data.read(batch))
                values.append(position % VALUES)
                if data.holds and numbers.random() < 0.25:
                    held.append(batch)
                del batch  # perhaps before the device begins to read it
                if device.type == "cuda":
                    events.append(torch.cuda.current_stream().record_event())
                    if len(events) > AHEAD:
                        events.popleft().synchronize()
                position += 1  # noqa: SIM113
                if position == last or len(values) == most:
                    break
    expected = right[torch.tensor(values, dtype=torch.int64, device=device)]
    return len(values), int((sums[: len(values)] != expected).sum())
