"""Measure on a GPU how much of the copies is hidden."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from dbloader.device import Normalize
from dbloader.loading.prefetch import PrefetchLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BATCH = 256
SIDE = 224
DIFFERENT = 8  # number of batches, which are used repeatedly
# Calls of the CUDA runtime in which the host waits; the profiler itself calls cudaDeviceSynchronize at its end.
WAITING = {"cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy"}

Row = tuple[str, str, str]  # what is measured, the measured value, the required value


class Network(torch.nn.Module):
    """Something to train, large enough that a step takes several times as long as the copy of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.normalize = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), dtype=torch.bfloat16)
        widths = [3, 64, 128, 256, 512]
        self.layers = torch.nn.Sequential(
            *(
                layer
                for before, after in itertools.pairwise(widths)
                for layer in (torch.nn.Conv2d(before, after, 3, stride=2, padding=1), torch.nn.ReLU())
            )
        ).to(dtype=torch.bfloat16)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(self.normalize(images)).float().mean()
        return result


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that some work takes, including everything that it queues on the device."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def medians(contenders: dict[str, Callable[[], object]], device: torch.device, rounds: int) -> dict[str, float]:
    """Return the median seconds of each function. They take turns, after a first round that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, work in contenders.items():
            taken = seconds(work, device)
            if number:
                times[name].append(taken)
    return {name: statistics.median(values) for name, values in times.items()}


def copies(device: torch.device, count: int, rounds: int, batch: int = BATCH, side: int = SIDE) -> list[Row]:
    """Measure how much of the copies is hidden behind the training, and what waits for them."""
    generator = torch.Generator().manual_seed(0)
    network = Network().to(device)
    source = [
        torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8, generator=generator) for _ in range(DIFFERENT)
    ]
    if device.type == "cuda":
        source = [each.pin_memory() for each in source]
    there = [each.to(device) for each in source]
    hosted = [source[number % DIFFERENT] for number in range(count)]
    resident = [there[number % DIFFERENT] for number in range(count)]
    loader = PrefetchLoader(hosted, device=device)

    def train(batches: Iterable[torch.Tensor]) -> None:
        for images in batches:
            network(images).backward()

    taken = medians(
        {
            "resident": lambda: train(resident),
            "prefetched": lambda: train(loader),
            "in turn": lambda: train(each.to(device) for each in hosted),
            "copies": lambda: [each.to(device, non_blocking=True) for each in hosted],
        },
        device,
        rounds,
    )
    hidden = max(0.0, 1 - max(0.0, taken["prefetched"] - taken["resident"]) / taken["copies"])
    share = taken["resident"] / taken["prefetched"]
    per_s = {name: count * batch / value for name, value in taken.items()}
    gigabytes = count * source[0].nbytes / taken["copies"] / 1e9
    rows = [
        ("training on batches that are on the device already, images/s", f"{per_s['resident']:,.0f}", ""),
        ("the same, copied in turn with the training, images/s", f"{per_s['in turn']:,.0f}", ""),
        ("the same through PrefetchLoader, images/s", f"{per_s['prefetched']:,.0f}", ""),
        ("speed through PrefetchLoader / speed on batches on the device", f"{share:.1%}", "at least 95 %"),
        ("share of the copies' time that is hidden", f"{hidden:.1%}", "at least 95 %"),
        ("copies alone, GB/s", f"{gigabytes:.1f}", ""),
    ]
    return [*rows, *memory(device, loader, train), *waiting(device, loader, train)]


def memory(device: torch.device, loader: PrefetchLoader[Any], train: Callable[[Any], None]) -> list[Row]:
    if device.type != "cuda":
        return []
    for_it = []
    for batches in ([next(iter(loader))] * 8, loader):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        train(batches)
        wait(device)
        for_it.append((torch.cuda.max_memory_allocated(device) - before) / 2**20)
    return [("peak memory of training without and with the loader, MiB", f"{for_it[0]:,.0f} and {for_it[1]:,.0f}", "")]


def waiting(device: torch.device, loader: PrefetchLoader[Any], train: Callable[[Any], None]) -> list[Row]:
    if device.type != "cuda":
        return []
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        train(loader)
    calls = [event.name for event in profile.events() if event.name in WAITING]
    return [("calls that wait for the device, in a profile of an epoch", str(len(calls)), "0")]
