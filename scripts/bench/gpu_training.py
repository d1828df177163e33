"""Train ResNet-50 on photographs: on batches that are on the device already, by dbloader, and by other loaders."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from gpu_steps import NORMALIZE, Row, Steps, small_network
from peer_decode_limit import batches as decode
from torch.utils.data import DataLoader, Subset

from dbloader import ImageFormat, LMDBDataset, convert, create_loader
from tests.support.images import photo, plant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpu_steps import Plan

    Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]

WARM_UP = 2 / 7  # share of a training's time that is not measured: 8 of 28 s
CLASSES = 10


class Sizes(NamedTuple):
    images: int
    width: int
    height: int
    samples: int  # number of samples in an epoch: the images, repeated
    side: int  # of a crop
    batch: int


def sizes(plan: Plan) -> Sizes:
    return Sizes(2000, 500, 375, 200_000, 224, 256) if plan.cuda else Sizes(40, 64, 48, 20_000, 32, 8)


def data(plan: Plan) -> Iterator[Row]:
    """Make the images and their stores, and measure how fast libjpeg-turbo decodes them on all cores."""
    size, folder = sizes(plan), plan.folder / "images"
    with multiprocessing.get_context("fork").Pool(plan.cores) as pool:
        photos = pool.starmap(partial(photo, quality=90), [(n, size.width, size.height) for n in range(size.images)])
    plant(folder, {f"class{number % CLASSES}/{number}.jpg": file for number, file in enumerate(photos)})
    convert(folder, plan.folder / "plain.lmdb")
    # With a quality, dbloader encodes the tiles itself: the program jpegtran may be missing.
    convert(folder, plan.folder / "tiled.lmdb", images=ImageFormat(tile=True, quality=90))
    kilobytes = sum(map(len, photos)) / len(photos) / 1000
    began = time.perf_counter()
    decoded = sum(len(labels) for _, labels in decode(folder, plan.cores, size.batch, 10 * size.images))
    limit = decoded / (time.perf_counter() - began)
    measured = f"{size.images:,} JPEGs of {size.width} x {size.height}, {kilobytes:.0f} kB on average"
    yield Row("training, data", f"{measured}; the cores decode {limit:,.0f} images/s", figures={LIMIT: limit})


def resident(plan: Plan) -> Batches:
    size, generator, there = sizes(plan), torch.Generator().manual_seed(0), []
    for _ in range(4):
        images = torch.randint(0, 256, (size.batch, 3, size.side, size.side), dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, CLASSES, (size.batch,), generator=generator)
        there.append((NORMALIZE(images.to(plan.device)), labels.to(plan.device)))
    return itertools.cycle(there)


def dbloader_batches(store: str, worker_type: Literal["threads", "processes"], plan: Plan) -> Batches:
    size, dataset = sizes(plan), LMDBDataset(plan.folder / f"{store}.lmdb")
    repeated: Any = Subset(dataset, [number % size.images for number in range(size.samples)])
    options: Any = {"device": plan.device, "normalize": NORMALIZE, "num_workers": plan.cores}
    return create_loader(repeated, size.side, size.batch, is_training=True, worker_type=worker_type, **options)


def torchvision_batches(plan: Plan) -> Batches:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    size = sizes(plan)
    crop = v2.RandomResizedCrop(size.side, antialias=True)
    dataset = ImageFolder(plan.folder / "images", v2.Compose([crop, v2.RandomHorizontalFlip(), v2.PILToTensor()]))
    dataset.samples = dataset.samples * (size.samples // size.images)
    options: Any = {"num_workers": plan.cores, "pin_memory": plan.cuda, "persistent_workers": True}
    for images, labels in DataLoader(dataset, size.batch, shuffle=True, drop_last=True, **options):
        yield NORMALIZE(images.to(plan.device, non_blocking=True)), labels.to(plan.device, non_blocking=True)


def timm_batches(plan: Plan) -> Batches:
    from timm.data import ImageDataset, create_loader

    size, dataset = sizes(plan), ImageDataset(str(plan.folder / "images"))
    dataset.reader.samples = dataset.reader.samples * (size.samples // size.images)
    options: Any = {"num_workers": plan.cores, "pin_memory": plan.cuda, "persistent_workers": True}
    options |= {"device": plan.device, "img_dtype": torch.bfloat16, "color_jitter": 0.0}
    batches: Batches = create_loader(dataset, (3, size.side, size.side), size.batch, is_training=True, **options)
    return batches


CEILING, LIMIT, OURS = "resident batches (the ceiling)", "decode limit", "create_loader"
CONTENDERS: dict[str, Callable[[Plan], Batches]] = {
    CEILING: resident,
    f"{OURS}, threads": partial(dbloader_batches, "plain", "threads"),
    f"{OURS}, processes": partial(dbloader_batches, "plain", "processes"),
    f"{OURS}, processes, tiled": partial(dbloader_batches, "tiled", "processes"),
    "DataLoader(pin_memory=True), torchvision v2": torchvision_batches,
    "timm's PrefetchLoader": timm_batches,
}


def trainer(plan: Plan) -> Callable[[torch.Tensor, torch.Tensor], None]:
    network: torch.nn.Module = torch.nn.Sequential(small_network(8, 16), torch.nn.Linear(16, CLASSES))
    if plan.cuda:
        from torchvision.models import resnet50

        network = resnet50()
    network.to(plan.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    # cuDNN does not search for its fastest kernels: it could choose others for each contender.
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)

    def train(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(plan.device.type, torch.bfloat16):
            outputs = network(images.contiguous(memory_format=torch.channels_last))
        torch.nn.functional.cross_entropy(outputs.float(), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return train


def training(name: str, plan: Plan) -> Iterator[Row]:
    train = trainer(plan)
    for images, labels in itertools.islice(resident(plan), 4):  # load the kernels
        train(images, labels)
    steps, measured_from, first_s, began = Steps(plan), 0, 0.0, time.monotonic()
    lasts_s = plan.left_s() - (1 if plan.cuda else 0)  # a second to end in
    try:
        for images, labels in CONTENDERS[name](plan):
            taken_s = time.monotonic() - began
            first_s = first_s or taken_s
            steps.run(train, images, labels)
            if taken_s < WARM_UP * lasts_s or not measured_from:
                measured_from = len(steps)
            elif taken_s > lasts_s and len(steps) > measured_from + 2:
                break
    except ModuleNotFoundError as error:
        yield Row(f"training, {name}", f"no module {error.name}", "", "not installed")
        return
    step_s, gaps = steps.measured(measured_from)
    figures = {name: sizes(plan).batch / step_s}
    measured = f"{figures[name]:,.0f} images/s in {step_s * len(gaps):.0f} s"
    measured += f"; the GPU waits {sum(gaps) / step_s / len(gaps):.1%}; first batch after {first_s:.1f} s"
    if name != CEILING:
        share = figures[name] / min(plan.figures.get(limit, math.inf) for limit in (CEILING, LIMIT))
        measured += f"; {share:.1%} of min(ceiling, decode limit)"
        if name.startswith(OURS):
            figures["best"] = max(plan.figures.get("best", 0), share)
    yield Row(f"training, {name}", measured, figures=figures)


def best(plan: Plan) -> Iterator[Row]:
    share = plan.figures.get("best", 0)
    measured = f"{share:.1%} of min(ceiling, decode limit)"
    yield Row("training, best of dbloader", measured, "at least 95 %", plan.verdict(share >= 0.95))
