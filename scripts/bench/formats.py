"""Compare small images, PNG and WebP with torchvision's ImageFolder: a new process for each run, in turns, medians.

python scripts/bench/formats.py PHOTOS BENCH [--workers 2] [--rounds 3] [--seconds 3] [--only WORD ...] [--cpu]

It cuts images of several formats and sizes out of the photographs in PHOTOS, and needs torchvision:
scripts/bench/install-transforms makes an environment with it. Batches are uint8, shuffled, and not used. Images with
masks are compared with torchvision's v2 transforms and tv_tensors, in place of ImageFolder.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import resource
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from corpus import photographs
from machine import describe_machine
from PIL import Image, ImageFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CLASSES = 10
CONTENDERS = ("ImageFolder", "drop-in", "auto", "threads", "processes")


class Images(NamedTuple):
    """Images of one format and size, and how they are stored and loaded."""

    name: str
    suffix: str
    side: int
    number: int
    opacity: bool = False
    padded: bool = False  # CIFAR's recipe: RandomCrop(side, padding=4) in batches of 128
    raw: bool = False
    masks: bool = False  # images of 465 x 394, each with a mask of 16 classes

    @property
    def size(self) -> tuple[int, int]:
        return (self.side, 394 if self.masks else self.side)

    @property
    def crop(self) -> int:
        return 224 if self.masks else self.side if self.padded else self.side * 7 // 8

    @property
    def batch_size(self) -> int:
        return 128 if self.padded else 64


ALL = (
    Images("PNG 32", "png", 32, 10_000),
    Images("JPEG 64", "jpg", 64, 10_000),
    Images("PNG 96", "png", 96, 5_000),
    Images("PNG 256", "png", 256, 2_000),
    Images("WebP 256", "webp", 256, 2_000),
    Images("PNG 64 with opacity", "png", 64, 10_000, opacity=True),
    Images("PNG 32, CIFAR's recipe", "png", 32, 10_000, padded=True),
    Images("raw 32, CIFAR's recipe", "png", 32, 10_000, padded=True, raw=True),
    Images("JPEG 465 x 394 with masks", "jpg", 465, 1_000, masks=True),
)


def make(images: Images, photos: list[Image.Image], folder: Path) -> None:
    """Make an image folder and a store, unless they exist."""
    rng = random.Random(0)
    aside = folder.with_name(folder.name + ".partial")
    for number in range(0 if folder.exists() else images.number):
        photo = rng.choice(photos)
        side = rng.randint(min(2 * images.side, min(photo.size)), min(photo.size))
        left, top = rng.randint(0, photo.width - side), rng.randint(0, photo.height - side)
        piece = photo.resize(images.size, box=(left, top, left + side, top + side))
        piece.info.clear()  # without the photograph's color profile
        if images.opacity:
            piece.putalpha(piece.convert("L"))
        file = aside / str(number % CLASSES) / f"{number}.{images.suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        piece.save(file, quality=90)
        if images.masks:
            classes = piece.convert("L").filter(ImageFilter.GaussianBlur(8)).point(lambda value: value // 16)
            classes.save(file.with_suffix(".png"))
    if not folder.exists():
        aside.rename(folder)
    if not store_of(folder, images).exists():
        options: list[str | Path] = ["--raw"] if images.raw else []
        if images.masks:
            listing = folder.with_suffix(".csv")
            with listing.open("w", newline="") as table:
                found = [path.relative_to(folder) for path in sorted(folder.rglob("*.jpg"))]
                csv.writer(table).writerows([("path", "mask"), *((path, path.with_suffix(".png")) for path in found)])
            options = ["--listing", listing, "--file-field", "mask"]
        subprocess.run(
            [sys.executable, "-m", "dbloader", "convert", folder, store_of(folder, images), *options],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def store_of(folder: Path, images: Images) -> Path:
    return folder.with_suffix(".raw.lmdb" if images.raw else ".lmdb")


class Pairs:
    """Images and their masks in a folder, as torchvision's transforms want them."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self.files, self.transform = sorted(folder.rglob("*.jpg")), transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        from torchvision import tv_tensors
        from torchvision.transforms.v2.functional import pil_to_tensor

        mask = tv_tensors.Mask(pil_to_tensor(Image.open(self.files[index].with_suffix(".png"))))
        return self.transform({"image": Image.open(self.files[index]).convert("RGB"), "mask": mask})


def batches(images: Images, contender: str, folder: Path, workers: int) -> Iterable[Any]:
    """Return a loader of one of the contenders."""
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    from dbloader import LMDBDataset, create_loader
    from dbloader.decoding import RandomCrop, RandomResizedCrop, as_tv_tensors

    fields: Any = {"fields": ("image", "mask")} if images.masks else {}
    if contender in ("ImageFolder", "drop-in"):
        crop = v2.RandomCrop(images.crop, padding=4) if images.padded else v2.RandomResizedCrop(images.crop)
        steps = [crop, v2.RandomHorizontalFlip(), v2.PILToTensor()]
        dataset: Any = Pairs(folder, v2.Compose(steps)) if images.masks else ImageFolder(folder, v2.Compose(steps))
        if contender == "drop-in":
            transform = {
                "transforms" if images.masks else "transform": v2.Compose([as_tv_tensors] * images.masks + steps)
            }
            dataset = LMDBDataset(store_of(folder, images), **transform, **fields)
        return DataLoader(dataset, images.batch_size, shuffle=True, num_workers=workers, drop_last=True)
    decode = RandomCrop(images.crop, padding=4) if images.padded else RandomResizedCrop(images.crop)
    kind: Any = contender
    return create_loader(
        LMDBDataset(store_of(folder, images), decode=decode, **fields), batch_size=images.batch_size, is_training=True,
        device=None, normalize=None, num_workers=workers, worker_type=kind,
    )  # fmt: skip


def cpu_time() -> float:
    """Return the CPU seconds of this process and of all its workers, ended or not."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    tasks = [task for child in active_children() for task in Path(f"/proc/{child.pid}/task").glob("*/schedstat")]
    running = sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
    return time.process_time() + ended.ru_utime + ended.ru_stime + running


def run(
    images: Images, contender: str, folder: Path, workers: int, seconds: float, clock: Callable[[], float]
) -> float:
    """Return the images per second of one contender, after its workers have started."""
    loader = batches(images, contender, folder, workers)
    taken, begun = -2 * workers, 0.0
    while True:
        for batch in loader:
            assert batch["image" if images.masks else 0].shape[1:] == (3, images.crop, images.crop)
            taken += 1
            if taken == 0:
                begun = clock()
            elif taken > 0 and taken % workers == 0 and clock() - begun >= seconds:
                return taken * images.batch_size / (clock() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare small images, PNG and WebP with ImageFolder.")
    parser.add_argument("photos", type=Path)
    parser.add_argument("bench", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="images with one of these in the name")
    parser.add_argument("--cpu", action="store_true", help="seconds are CPU time: for a machine that others use too")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = [one for one in ALL if any(word.lower() in one.name.lower() for word in options.only)]
    folders = {one: options.bench / f"{one.suffix}-{one.side}{'-opacity' * one.opacity}" for one in chosen}
    if options.run:
        [images] = [one for one in chosen if one.name == options.run[0]]
        clock = cpu_time if options.cpu else time.perf_counter
        rate = run(images, options.run[1], folders[images], options.workers, options.seconds, clock)
        print(json.dumps(rate), flush=True)
        os._exit(0)
    options.bench.mkdir(parents=True, exist_ok=True)
    photos = photographs(options.photos)
    print(f"{describe_machine()}\n\n{options.workers} workers, medians of {options.rounds} rounds.\n")
    print(
        f"| images | ImageFolder, images/s | {', x | '.join(CONTENDERS[1:])}, x |\n| --- |{' ---: |' * len(CONTENDERS)}"
    )
    for images in chosen:
        make(images, photos, folders[images])
        # An image that is stored as an array is not loaded as a PIL image, so the store cannot replace an ImageFolder.
        rates: dict[str, list[float]] = {one: [] for one in CONTENDERS if not (images.raw and one == "drop-in")}
        for _ in range(options.rounds):
            for contender, some in rates.items():
                command = [sys.executable, *sys.argv, "--run", images.name, contender]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                some.append(json.loads(done.stdout.splitlines()[-1]))
        base = rates.pop("ImageFolder")
        ratios = {one: median(a / b for a, b in zip(some, base, strict=True)) for one, some in rates.items()}
        cells = [f"{ratios[one]:.2f}" if one in ratios else "" for one in CONTENDERS[1:]]
        print(f"| {images.name} | {median(base):,.0f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
