"""Compare loaders on a user's own transforms, torchvision's and timm's: a new process for each run, in turns, medians.

BENCH/transforms/bin/python scripts/bench/transforms.py BENCH [--quick] [--workers 2] [--rounds 3] [--only WORD ...]

It runs in the environment that scripts/bench/install-transforms makes, with torchvision, timm and NVIDIA DALI;
contenders whose package is missing are left out. The images are the same as in training.py.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import traceback
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from contender import run
from data import LIMIT, QUALITY, REFERENCE, SHORT_SIDE, make_short, told
from machine import describe_machine
from page_cache import bring_into_memory
from table import print_tables
from tasks import RESIZED, Task

from dbloader import ImageFormat, convert
from dbloader._version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from tasks import Transforms

WAIT_S = 120
SHOWN = ("torch", "torchvision", "timm", "Pillow", "simplejpeg", "nvidia-dali-cuda130")

WORDS: dict[Transforms, str] = {
    "torchvision": "torchvision v2's RandomResizedCrop(224), RandomHorizontalFlip",
    "floats": "torchvision's RandomResizedCrop(224), RandomHorizontalFlip, ToTensor, Normalize",
    "timm": "timm's create_transform(224, is_training=True)",
    "timm, no jitter": "timm's with color_jitter=None",
    "validation": f"torchvision v2's Resize({RESIZED}), CenterCrop(224)",
}
# {words in a contender's name: option ``resize`` of LMDBDataset}.
RESIZES = {"": None, ", fast": "fast", ", scaled": "scaled"}


class Contender(NamedTuple):
    """A contender on a task.

    Attributes:
        images: The task in words: a heading.
        name: Name of the contender.
        module: Module peer_NAME.py, whose function ``batches`` yields the batches.
        place: Images of the contender.
        task: The transforms, and the size of a batch.
        options: Further arguments of ``batches``.
    """

    images: str
    name: str
    module: str
    place: Path
    task: Task
    options: dict[str, Any]

    @property
    def key(self) -> str:
        return f"{self.images}: {self.name}"

    def measure(self, workers: int, seconds: float) -> dict[str, float]:
        """Return the figures of one run, in this process."""
        batches = import_module(f"peer_{self.module}").batches
        # This contender only decodes, so it does not need the task.
        task = {"batch": self.task.batch} if self.name == LIMIT else {"task": self.task}
        kind = "uint8" if self.name == LIMIT else self.task.kind
        return run(lambda: batches(self.place, workers, **task, **self.options), workers, seconds, kind)


def all_contenders(folders: dict[str, Path], made: Path) -> Iterator[Contender]:
    """Yield the contenders that are compared.

    Args:
        folders: The folder of each kind of images, by the name of the stores that are made of them.
        made: Folder of these stores.
    """
    tasks: tuple[tuple[str, str, tuple[Transforms, ...]], ...] = (
        ("full", "full size", ("torchvision", "floats", "timm", "timm, no jitter", "validation")),
        ("short", f"short side {SHORT_SIDE}, quality {QUALITY}", ("torchvision", "validation")),
    )
    for key, images, kinds in tasks:
        for transforms in kinds:
            yield from on_task(f"{images}, {WORDS[transforms]}", key, folders[key], made, Task(transforms))


def on_task(images: str, key: str, folder: Path, made: Path, task: Task) -> Iterator[Contender]:
    """Yield the contenders on one task."""
    options: dict[str, Any]
    yield Contender(images, REFERENCE, "own_transforms", folder, task, {})
    stores = {"": made / f"{key}.lmdb"}
    if task.is_training:  # validation resizes whole images, so it has no use for tiles
        stores[", tiled"] = made / f"{key}-tiled.lmdb"
    for tiled, place in stores.items():
        for words, resize in RESIZES.items():
            if words != ", scaled" or not task.is_training:  # crops of small images are seldom scaled
                options = {"resize": resize}
                yield Contender(images, f"LMDBDataset{tiled}{words}", "own_transforms", place, task, options)
    for tiled, place in stores.items():
        for kind in ("threads", "processes"):
            yield Contender(images, f"create_loader, {kind}{tiled}", "fused", place, task, {"kind": kind})
    if not task.transforms.startswith("timm"):
        yield Contender(images, "NVIDIA DALI", "dali", folder, task, {})
    yield Contender(images, LIMIT, "decode_limit", folder, task, {})


def measure(contender: Contender, workers: int, seconds: float, answer: Connection) -> None:
    """Send the figures of one run, or an error message, and end this process."""
    # set the start method of workers, which otherwise is inherited from this process
    multiprocessing.set_start_method("fork", force=True)
    try:
        sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 # until the process ends
        answer.send(contender.measure(workers, seconds))
    except BaseException as error:  # a contender may raise any error, even SystemExit
        answer.send(traceback.format_exception_only(error)[-1].strip())
    os._exit(0)  # some would end with an error, because their threads still run


def run_in_new_process(contender: Contender, workers: int, seconds: float) -> dict[str, float] | str:
    """Return the figures of one run, or an error message.

    The process is forked from one that has imported the packages and done nothing else, which saves three seconds.
    """
    bring_into_memory(contender.place)  # other contenders may have displaced these files from the page cache
    start = multiprocessing.get_context("forkserver")
    receive, send = start.Pipe(duplex=False)
    process = start.Process(target=measure, args=(contender, workers, seconds, send))
    process.start()
    send.close()
    try:
        if not receive.poll(WAIT_S):
            return f"took over {WAIT_S} s"
        answer: dict[str, float] | str = receive.recv()
    except EOFError:
        return "ended without a word"
    else:
        return answer
    finally:
        process.join(1)
        process.kill()
        process.join()


def take_turns(contenders: list[Contender], options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Return the runs of each contender, one for each round. A contender that fails once has no runs."""
    runs: dict[str, list[dict[str, float]]] = {one.key: [] for one in contenders}
    left = list(contenders)
    for number in range(options.rounds):
        told(f"Round {number + 1} of {options.rounds} ...")
        for one in list(left):
            result = run_in_new_process(one, options.workers, options.seconds)
            if isinstance(result, str):
                told(f"{one.key} left out: {result}")
                left.remove(one)
                runs[one.key].clear()
            else:
                runs[one.key].append(result)
    return runs


def prepare(contenders: list[Contender], folders: dict[str, Path], options: argparse.Namespace) -> None:
    """Make the images and stores that the contenders need."""
    make_short(folders["full"], folders["short"].parent)
    for place in {one.place for one in contenders if one.place.suffix == ".lmdb"}:
        if not place.exists():
            key = place.stem.removesuffix("-tiled")
            convert(folders[key], place, images=ImageFormat(tile=place.stem != key))


def installed(packages: Sequence[str]) -> dict[str, str]:
    found = {"dbloader": __version__}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare loaders on a user's own transforms.")
    parser.add_argument("bench", type=Path)
    parser.add_argument("--workers", type=int, default=2, help="number of threads or processes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.2, help="seconds of each measurement")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="contenders or tasks with one of these in the name")
    options = parser.parse_args()
    made = options.bench / "training-corpus"
    made.mkdir(exist_ok=True)
    folders = {"full": options.bench / "corpus", "short": made / "short"}
    contenders = list(all_contenders(folders, made))
    if options.quick:
        options.rounds, options.seconds = 1, 0.5
    if options.only:
        contenders = [one for one in contenders if any(word.lower() in one.key.lower() for word in options.only)]
    told("Preparing ...")
    prepare(contenders, folders, options)
    multiprocessing.set_forkserver_preload(
        ["__main__", "timm.data", "torchvision.transforms.v2", "torchvision.datasets"]
    )
    print(f"\n## Your own transforms\n\n{describe_machine(installed(SHOWN))}.")
    print(f"\n{options.workers} workers, files in memory, medians; rounds: {options.rounds}. MB: memory of all "
          "processes without pages of files; packages that all runs import are shared and count in part.")  # fmt: skip
    print_tables(contenders, take_turns(contenders, options))


if __name__ == "__main__":
    main()
