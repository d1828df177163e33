"""Measure on a GPU how much of the copies is hidden, and how fast images are decoded there."""

from __future__ import annotations

import io
import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageFilter

from dbloader._machine import cpu_count
from dbloader.decoding.random_crop import RandomResizedCrop
from dbloader.device import Normalize
from dbloader.device.decode import DeviceDecoder
from dbloader.device.encoded import EncodedImages
from dbloader.errors import OptionError
from dbloader.loading.prefetch import PrefetchLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

BATCH = 256
SIDE = 224
DIFFERENT = 8  # batches, which are used again and again
# Calls of the CUDA runtime in which the host waits; the profiler itself calls cudaDeviceSynchronize at its end.
WAITING = {"cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy"}

Row = tuple[str, str, str]  # what, measured, asked


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
    """Return the time of some work, with everything that it queues on the device."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def medians(contenders: dict[str, Callable[[], object]], device: torch.device, rounds: int) -> dict[str, float]:
    """Return seconds of each, taken in turn, after one round that does not count."""
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
        ("its speed, as a share of that on the device", f"{share:.1%}", "at least 95 %"),
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
    return [("peak memory of the training, and with the loader, MiB", f"{for_it[0]:,.0f} and {for_it[1]:,.0f}", "")]


def waiting(device: torch.device, loader: PrefetchLoader[Any], train: Callable[[Any], None]) -> list[Row]:
    if device.type != "cuda":
        return []
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        train(loader)
    calls = [event.name for event in profile.events() if event.name in WAITING]
    return [("calls that wait for the device, in a profile of an epoch", str(len(calls)), "0")]


def photographs(folder: Path | None, count: int) -> list[bytes]:
    """Return JPEGs: those of a folder, or blurred noise of 500 x 375 pixels."""
    if folder is not None:
        files = [path.read_bytes() for path in sorted(folder.rglob("*.jp*g"))[:count]]
        if not files:
            raise SystemExit(f"gpu-check: no JPEG is in {folder}")
        return files
    noise = np.random.default_rng(0)
    files = []
    for _ in range(min(count, 32)):
        image = Image.fromarray(noise.integers(0, 256, (375, 500, 3), np.uint8)).filter(ImageFilter.GaussianBlur(1.5))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=95)
        files.append(file.getvalue())
    return files


def decoding(device: torch.device, folder: Path | None, count: int, rounds: int, batch: int = BATCH) -> list[Row]:
    """Compare decoding on the device with decoding in threads on the CPU."""
    decoder = RandomResizedCrop(SIDE)
    try:
        on_device = DeviceDecoder(decoder, device)
    except OptionError as error:
        return [("decoding on the device", str(error), "")]
    on_cpu = DeviceDecoder(decoder, "cpu")
    files = photographs(folder, 4 * batch)
    random = np.random.default_rng(1)
    batches = []
    for first in range(0, min(DIFFERENT, count) * batch, batch):
        chosen = [files[number % len(files)] for number in range(first, first + batch)]
        batches.append(EncodedImages(chosen, random.random((batch, decoder.draws))))

    def decoded(with_decoder: DeviceDecoder) -> Callable[[], object]:
        loader = PrefetchLoader([(each,) for each in batches], device=device, preparation=with_decoder)
        return lambda: [None for _ in loader]

    taken = medians({"device": decoded(on_device), "cpu": decoded(on_cpu)}, device, rounds)
    per_s = {name: len(batches) * batch / value for name, value in taken.items()}
    difference = (on_device(batches[0]).cpu().int() - on_cpu(batches[0]).int()).abs().float()
    nbytes = sum(map(len, files)) / len(files)
    threads = cpu_count()
    library = repr(on_device).rpartition(" with ")[2]
    return [
        (
            f"JPEGs of {nbytes / 1000:.0f} kB to {SIDE} x {SIDE}, {threads} CPU threads, images/s",
            f"{per_s['cpu']:,.0f}",
            "",
        ),
        (f"the same on the device with {library}, images/s", f"{per_s['device']:,.0f}", ""),
        ("their difference in levels, mean and greatest", f"{difference.mean():.2f} and {difference.max():.0f}", ""),
    ]
