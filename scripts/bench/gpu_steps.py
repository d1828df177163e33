"""The form of the rows of scripts/gpu-check, the times of steps on a device, and how much of the copies is hidden."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch
from torch import nn

from dbloader.device import Normalize, Preparation, RandomErasing
from dbloader.loading.prefetch import PrefetchLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BAD = ("fails", "void", "error")
NOT_SHOWN = "not shown"  # only a GPU can show it
NORMALIZE = Normalize(dtype=torch.bfloat16, channels_last=True)
BATCHES, SHAPE = 512, (256, 3, 224, 224)
FEW, SMALL = 16, (2, 3, 32, 32)  # BATCHES and SHAPE on a CPU
DIFFERENT = 4  # number of batches, which are used in turn
WARM_UP, PROFILED = 4, 20
# Calls of the CUDA runtime in which the host waits; the profiler itself calls cudaDeviceSynchronize at its end.
WAITING = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")
# (pinned batches?, prepared batches?, priority of the loader's stream; the training's is 0, and -1 comes before 0)
CASES = {
    "pinned": (True, False, 0),
    "unpinned": (False, False, 0),
    "pinned, prepared": (True, True, 0),
    "unpinned, prepared": (False, True, 0),
    "unpinned, prepared at priority -1": (False, True, -1),
}


class Row(NamedTuple):
    what: str
    measured: str
    asked: str = ""
    verdict: str = ""  # "passes", one of BAD, NOT_SHOWN or "not installed"; "" if the row only measures
    figures: dict[str, float] = {}  # noqa: RUF012 - never changed; later rows read them


@dataclass
class Plan:
    """The device, folder and time that a row may use. On a CPU, everything is small."""

    device: torch.device
    folder: Path  # for the data of the trainings
    cores: int
    deadline: float = 0.0  # time.monotonic() at which the row should be measured
    figures: dict[str, float] = field(default_factory=dict)  # measured by earlier rows

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def verdict(self, passed: bool) -> str:
        return NOT_SHOWN if not self.cuda else "passes" if passed else "fails"


class Steps:
    """Measures when the device begins and ends each step of a training.

    The host runs at most two steps ahead of the device, as in a training that logs its loss.
    """

    def __init__(self, plan: Plan) -> None:
        self._cuda = plan.cuda
        self._marks: list[Any] = []  # before and after each step: events, or seconds on a CPU

    def __len__(self) -> int:
        return len(self._marks) // 2

    def run(self, work: Callable[..., object], *arguments: object) -> None:
        self._mark()
        work(*arguments)
        self._mark()
        if self._cuda and len(self) > 2:
            self._marks[-5].synchronize()  # the end of the step before the last

    def _mark(self) -> None:
        if self._cuda:
            # Blocking, because polling the event would take a core from the loaders.
            event: Any = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
            event.record()
        self._marks.append(event if self._cuda else time.perf_counter())

    def measured(self, since: int) -> tuple[float, list[float]]:
        """Return the mean seconds of a step with its gap, and each gap, in which the device waits, from a step on."""
        if self._cuda:
            self._marks[-1].synchronize()

        def seconds(earlier: Any, later: Any) -> Any:
            return earlier.elapsed_time(later) / 1000 if self._cuda else later - earlier

        marks = self._marks[2 * since + 1 :]
        gaps = [seconds(*pair) for pair in zip(marks[:-1:2], marks[1::2], strict=True)]
        return seconds(marks[0], marks[-1]) / len(gaps), gaps


def small_network(*widths: int) -> nn.Module:
    """Return convolutions that each halve the images, then the mean of each channel."""
    pairs = zip((3, *widths), widths, strict=False)
    layers = [layer for pair in pairs for layer in (nn.Conv2d(*pair, 3, stride=2, padding=1), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def loader_of(plan: Plan, count: int, *, pinned: bool, prepared: bool) -> PrefetchLoader[torch.Tensor]:
    generator, shape = torch.Generator().manual_seed(0), SHAPE if plan.cuda else SMALL
    hosts = [torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator) for _ in range(DIFFERENT)]
    hosts = [host.pin_memory() for host in hosts] if pinned and plan.cuda else hosts
    preparation = Preparation(NORMALIZE, RandomErasing(0.25, mode="pixel")) if prepared else None
    return PrefetchLoader([hosts[n % DIFFERENT] for n in range(count)], plan.device, preparation=preparation)


def trainer(plan: Plan) -> Callable[..., None]:
    """Return a function that trains a small network on a batch, some times in a row."""
    network = small_network(*((64, 128, 256, 512) if plan.cuda else (4, 4))).to(plan.device, torch.bfloat16)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def train(images: torch.Tensor, times: int = 1) -> None:
        for _ in range(times):
            network(images.to(torch.bfloat16, memory_format=torch.channels_last)).float().mean().backward()

    return train


def copies(name: str, plan: Plan) -> Iterator[Row]:
    pinned, prepared, priority = CASES[name]
    count = BATCHES if plan.cuda else FEW
    fewer = max(2 * WARM_UP, count // 8)  # steps of the training alone, and of the loader alone
    loader, train = loader_of(plan, count, pinned=pinned, prepared=prepared), trainer(plan)
    stream = partial(torch.cuda.Stream, priority=priority)
    with mock.patch.object(torch.cuda, "Stream", stream):  # the loader makes its stream with the first batch
        there = [batch.clone() for batch in islice(loader, DIFFERENT)]
    resident, copied, alone, once = (Steps(plan) for _ in range(4))
    for number in range(2 * WARM_UP):
        once.run(train, there[number % DIFFERENT])
    once_s, _ = once.measured(WARM_UP)
    # Repeat the training in each step so often that all steps take the row's time, except for a second to end in.
    times = max(1, int((plan.left_s() - 1) / (count + 2 * fewer) / once_s)) if plan.cuda else 1
    for number in range(fewer):
        resident.run(train, there[number % DIFFERENT], times)
    for images in loader:
        copied.run(train, images, times)
    for _ in islice(loader, fewer):
        alone.run(lambda: None)
    (resident_s, no_gaps), (copied_s, gaps) = resident.measured(WARM_UP), copied.measured(WARM_UP)
    alone_s, _ = alone.measured(WARM_UP)
    hidden = 1 - min(1.0, max(0.0, fmean(gaps) - fmean(no_gaps)) / alone_s)
    p50, p99, longest = (1000 * sorted(gaps)[int(share * (len(gaps) - 1))] for share in (0.5, 0.99, 1))
    measured = f"{hidden:.1%} hidden; gaps between steps: p50 {p50:.3f} ms, p99 {p99:.3f}, longest {longest:.2f}; "
    measured += f"batch alone {1000 * alone_s:.2f} ms; step {1000 * copied_s:.2f}, resident {1000 * resident_s:.2f}"
    yield Row(f"copies, {name}", measured, "at least 95 % hidden", plan.verdict(hidden >= 0.95))


def profile(plan: Plan) -> Iterator[Row]:
    loader, train = loader_of(plan, WARM_UP + PROFILED, pinned=False, prepared=True), trainer(plan)
    for images in loader:  # some calls wait when they are made the first time
        train(images)
    batches = iter(loader)
    for images in islice(batches, WARM_UP):
        train(images)
    kinds = [torch.profiler.ProfilerActivity.CPU, *[torch.profiler.ProfilerActivity.CUDA] * plan.cuda]
    with torch.profiler.profile(activities=kinds) as profiled:
        for images in batches:
            train(images)
    calls = Counter(event.name for event in profiled.events())
    copied, waited = calls["cudaMemcpyAsync"], sum(calls[name] for name in WAITING)
    measured = f"{PROFILED} steps: {copied} calls of cudaMemcpyAsync, {waited} calls that wait for the device"
    yield Row("profile", measured, "copies, and 0 that wait", plan.verdict(copied > 0 and not waited))
