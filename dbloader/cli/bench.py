"""``dbloader bench``."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from dbloader.cli.place import PlaceArgument
from dbloader.cli.text import counted, say, say_json, size

if TYPE_CHECKING:
    from dbloader.loading.benchmark.report import Benchmark, Measurement


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str | None) -> list[int] | None:
    """Return the whole numbers, of at least 0, in a text with commas between them."""
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", part) for part in parts):
        raise click.BadParameter(
            f"must be whole numbers of at least 0 with commas between them, such as 0,1,2, got {value!r}"
        )
    return [int(part) for part in parts]


@click.command(
    "bench",
    short_help="Measure how fast a store gives images on this machine, and what limits it.",
    epilog="""\b
Examples:
  dbloader bench train.lmdb
  dbloader bench train.lmdb --folder imagenet/train/ --workers 0,1,2 --plot bench.svg
  dbloader bench mongodb://server/images.train --json | jq -r .verdict""",
)
@click.argument("place", type=PlaceArgument())
@click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(),
    help="Measure a folder of images beside it, as trainings commonly read one (a file each, Pillow, DataLoader).",
)
@click.option(
    "--batch-size", metavar="N", type=int, help="Images in a batch.  [default: 64, or all of a smaller store]"
)
@click.option(
    "--size", metavar="PX", type=int, default=224, show_default=True, help="Height and width of the images in it."
)
@click.option(
    "--workers",
    metavar="N,N,...",
    callback=_numbers,
    help="Numbers of threads and of processes.  [default: 0,1,2,4 and so on to the number of processors]",
)
@click.option(
    "--seconds", metavar="S", type=float, default=2, show_default=True, help="Of each measurement in each round."
)
@click.option("--rounds", metavar="N", type=int, default=3, show_default=True, help="Turns; the medians count.")
@click.option("--plot", metavar="FILE", type=click.Path(), help="Draw a bar chart: .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def bench_command(*, as_json: bool, **options: Any) -> None:
    """Measure how fast the store PLACE gives images on this machine, and say what limits it.

    Measured are reading records and decoding images by themselves, in one thread, and whole batches for a training
    (random crops resized to --size, uint8), made by threads and by processes, with a consumer that does nothing else.
    All take turns. Programs that run meanwhile make the figures worse.

    Whether a training of yours waits for its data is told by the stats() of its loader; how fast it would be if data
    were free, by dbloader.Headspace(loader) in the loader's place.
    """
    try:
        from dbloader.loading.benchmark.measure import benchmark  # imports torch, which takes over a second
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise click.ClickException("bench needs torch, which is not installed here: pip install torch") from error

    shows = not as_json and sys.stderr is not None and sys.stderr.isatty()
    with tqdm(disable=not shows, dynamic_ncols=True, leave=False, unit=" runs") as bar:

        def show(done: int, total: int, name: str) -> None:
            bar.total = total
            bar.set_description(f"Measuring: {name}", refresh=False)
            bar.update(done - bar.n)
            bar.refresh()

        result = benchmark(**options, progress=show)
    if as_json:
        say_json(asdict(result), indent=2)
    else:
        _print(result)


def _print(result: Benchmark) -> None:
    images = f"{counted(result.images, 'image')} of {size(result.image_bytes)}"
    without = result.records - result.images
    left_out = f" ({counted(without, 'record')} without one left out)" if without else ""
    say(f"{result.place}: {images}{left_out}, to {result.size} x {result.size}, batches of {result.batch_size}")
    if result.folder:
        damaged = result.folder_left_out
        note = f" ({counted(damaged, 'image')} left out as {'it does' if damaged == 1 else 'they do'} not decode)"
        say(f"folder: {result.folder}{note if damaged else ''}")
    say(f"{result.machine}")
    width = max(len(one.name) for one in result.measurements)
    say("")
    say(f"  {'':<{width}}  {'images/s':>10}  {'least - greatest':>19}  {'MB/s':>8}  {'first batch':>11}")
    for one in result.measurements:
        say(f"  {one.name:<{width}}  {_row(one)}".rstrip())
    say("")
    say(result.verdict)


def _row(one: Measurement) -> str:
    spread = f"{min(one.rounds):,.0f} - {max(one.rounds):,.0f}"
    megabytes = "" if one.bytes_per_s is None else f"{one.bytes_per_s / 1e6:,.0f}"
    first = "" if one.first_batch_s is None else f"{one.first_batch_s:.2f} s"
    return f"{one.images_per_s:>10,.0f}  {spread:>19}  {megabytes:>8}  {first:>11}"
