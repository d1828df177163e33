"""Measures a store on this machine."""

from __future__ import annotations

import math
from operator import index as as_index
from statistics import median
from typing import TYPE_CHECKING

from dbloader._machine import processors
from dbloader.batches.timed import Work
from dbloader.errors import OptionError
from dbloader.loading.benchmark.chart import Chart
from dbloader.loading.benchmark.contenders import all_contenders
from dbloader.loading.benchmark.folder import FolderDataset
from dbloader.loading.benchmark.images import Images
from dbloader.loading.benchmark.machine import describe_machine
from dbloader.loading.benchmark.report import Benchmark, Measurement
from dbloader.loading.benchmark.verdict import fastest, find_limit, verdict

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from dbloader.loading.benchmark.contenders import Contender
    from dbloader.loading.benchmark.images import TimedRun


BATCH_SIZE = 64


def benchmark(
    place: str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    size: int = 224,
    workers: Sequence[int] | None = None,
    seconds: float = 2.0,
    rounds: int = 3,
    plot: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int, str], object] = lambda *_: None,
) -> Benchmark:
    """Measure how fast the images of a store are read, decoded, and made batches for a training, on this machine.

    All that is measured takes turns, round after round, so that what else the machine does meanwhile falls on all
    alike; the medians count. Records come in random order, each as often as the others. Reading and decoding are those
    of one thread; batches are `create_loader`'s for training (RandomResizedCrop, uint8), taken by a consumer that
    does nothing else, by threads and by processes.

    How fast a training would be if its data were free is told by `Headspace` around the training's own loader.

    Args:
        place: A store in an LMDB file or in MongoDB.
        folder: A folder of images, one folder for each class, to be measured beside it as trainings commonly read
            one: Pillow, and torch's DataLoader with as many processes. Its images that do not decode are left out as
            they are met, and counted.
        batch_size: Images in a batch, no more than the store has; None for 64, or all of a smaller store.
        size: Height and width of the images in it, in pixels.
        workers: Numbers of threads and processes, each at least 0; None for 0, 1, 2, 4 and so on to the number of
            processors.
        seconds: That each measurement takes in each round, at least; the workers' start comes on top.
        rounds: How often each is measured.
        plot: File to write a bar chart to, .png, .svg or .pdf; that needs matplotlib.
        progress: Called before each measurement with the number of those done, of all, and its name; and at the end.

    Raises:
        OptionError: An option is out of its range, or matplotlib is not installed; or no record has an image, or fewer
            have one than a batch was to have.
        StoreError: There is no store, or it cannot be read.
        SourceError: There are no images in the folder.
        DamagedImageError: An image of the store does not decode, or not one of the folder does.
    """
    for name, value in (("batch_size (--batch-size)", batch_size), ("size", size), ("rounds", rounds)):
        if value is not None and as_index(value) < 1:
            raise OptionError(f"{name} must be at least 1, got {value}")
    if not (seconds > 0 and math.isfinite(seconds)):
        raise OptionError(f"seconds must be a number above 0, got {seconds}")
    counts = checked_workers(workers)
    chart = None if plot is None else Chart(plot)  # which must not fail at the end
    images = Images(place)
    try:
        batch_size = checked_batch_size(batch_size, images)
        files = None if folder is None else FolderDataset(folder, size)
        runs = take_turns(all_contenders(images, files, counts, batch_size, size), seconds, rounds, progress)
        measurements = tuple(measured(contender, some) for contender, some in runs)
        best = fastest(measurements, "threads", "processes")
        work = sum((run.work or Work() for run in runs[measurements.index(best)][1]), Work())
        limit, share = find_limit(work)
        result = Benchmark(
            place=images.place,
            folder=None if files is None else files.place,
            folder_left_out=0 if files is None else files.left_out,
            records=len(images.nbytes),
            images=len(images.indices),
            image_bytes=images.image_bytes,
            batch_size=batch_size,
            size=size,
            seconds=seconds,
            machine=describe_machine(),
            measurements=measurements,
            limit=limit,
            limit_share=share,
            verdict=verdict(measurements, limit, share, processors(), resized=images.resized),
        )
    finally:
        images.dataset.close()
    if chart is not None:
        chart.draw(result)
    return result


def checked_batch_size(batch_size: int | None, images: Images) -> int:
    """Return the number of images in a batch, of those that a store has."""
    most = len(images.indices)
    if batch_size is None:
        return min(BATCH_SIZE, most)
    if batch_size > most:
        raise OptionError(
            f"batch_size (--batch-size) must be at most {most}, as many as {images.place} has images, got {batch_size}"
        )
    return batch_size


def checked_workers(workers: Sequence[int] | None) -> list[int]:
    """Return numbers of workers, each once, from the least on."""
    if workers is None:
        most = processors()
        return sorted({0, most, *(2**power for power in range(most.bit_length()))})
    counts = sorted({as_index(count) for count in workers})
    if not counts or counts[0] < 0:
        raise OptionError(f"workers must be one or more numbers of at least 0, got {list(workers)}")
    return counts


def take_turns(
    contenders: Sequence[Contender], seconds: float, rounds: int, progress: Callable[[int, int, str], object]
) -> list[tuple[Contender, list[TimedRun]]]:
    """Return the runs of each contender, one in each round."""
    runs: list[tuple[Contender, list[TimedRun]]] = [(contender, []) for contender in contenders]
    total = rounds * len(contenders)
    for number in range(rounds):
        for at, (contender, some) in enumerate(runs):
            progress(number * len(contenders) + at, total, contender.name)
            some.append(contender.run(seconds))
    progress(total, total, "")
    return runs


def measured(contender: Contender, runs: Sequence[TimedRun]) -> Measurement:
    """Return what the runs of a contender come to."""
    rates = [run.images / run.seconds for run in runs]
    first = [run.first_s for run in runs if run.first_s is not None]
    return Measurement(
        name=contender.name,
        kind=contender.kind,
        workers=contender.workers,
        images_per_s=median(rates),
        rounds=tuple(rates),
        bytes_per_s=median(run.nbytes / run.seconds for run in runs) if contender.kind == "read" else None,
        first_batch_s=median(first) if first else None,
    )
