"""NVIDIA DALI on the CPU: files read in a shuffled order, crops decoded in part by libjpeg-turbo, threads of C++."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from contender import SIZE
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy
from tasks import MEAN, RESIZED, STD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tasks import Task


@pipeline_def  # type: ignore[untyped-decorator] # it ships no types
def training(place: str, kind: str) -> Any:
    files, labels = fn.readers.file(file_root=place, random_shuffle=True, name="files")
    images = fn.decoders.image_random_crop(
        files, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    images = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True)
    mirror = fn.random.coin_flip()
    if kind == "uint8":
        return fn.flip(images, horizontal=mirror), labels
    mean, std = ([255 * each for each in values] for values in (MEAN, STD))
    return fn.crop_mirror_normalize(images, mirror=mirror, mean=mean, std=std), labels


@pipeline_def  # type: ignore[untyped-decorator]
def validation(place: str) -> Any:
    files, labels = fn.readers.file(file_root=place, random_shuffle=True, name="files")
    images = fn.decoders.image(files, device="cpu")
    images = fn.resize(images, resize_shorter=RESIZED, interp_type=types.INTERP_LINEAR, antialias=True)
    return fn.crop(images, crop=(SIZE, SIZE)), labels


def batches(place: Path, workers: int, task: Task) -> Iterator[Any]:
    make = partial(training, kind=task.kind) if task.is_training else validation
    pipeline = make(str(place), batch_size=task.batch, num_threads=workers, device_id=None, seed=0)
    loader = DALIGenericIterator(
        pipeline, ["images", "labels"], reader_name="files", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
    )
    while True:  # DALI's epochs follow each other without a pause
        for (batch,) in loader:
            yield batch["images"], batch["labels"]
