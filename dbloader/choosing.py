"""What a loader for images is made with, where its user did not say."""

from __future__ import annotations

import copy
import os
import random
import sys
from operator import index as as_index
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, get_worker_info
from typing_extensions import override

from dbloader.batches import EncodedBatchMaker, TensorBatchMaker
from dbloader.datasets.base import StoreDataset
from dbloader.decoding import Decoder, RandomResizedCrop, ResizeCenterCrop, decode_pil
from dbloader.errors import OptionError
from dbloader.machine import processors
from dbloader.preparation import Normalize
from dbloader.sampling import KeyedBatchSampler, OrderedSampler, ResumableSampler, ShuffleSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.utils.data import Sampler

    from dbloader.batches import BatchMaker

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def suits_threads(maker: BatchMaker) -> bool:
    """Says whether threads make the batches at least as fast as processes do."""
    free = not getattr(sys, "_is_gil_enabled", lambda: True)()
    return free or isinstance(maker, (TensorBatchMaker, EncodedBatchMaker))


def height_and_width(input_size: int | Sequence[int]) -> tuple[int, int]:
    """Gives the height and width in pixels that one number, two, or timm's three say."""
    sides = (input_size, input_size) if isinstance(input_size, int) else tuple(input_size)
    if len(sides) == 3 and sides[0] == 3:
        sides = sides[1:]
    if len(sides) != 2 or min(sides) < 1:
        raise OptionError(f"input_size must be a height and a width in pixels, or one number, got {input_size}")
    return as_index(sides[0]), as_index(sides[1])


def default_transform(dataset: Any, size: tuple[int, int], *, is_training: bool) -> Decoder | None:
    """Gives the transform of a dataset that has none of its own."""
    if getattr(dataset, "transform", None) is not None:
        return None
    if isinstance(dataset, StoreDataset) and dataset.decode is not decode_pil:
        return None
    return RandomResizedCrop(size) if is_training else ResizeCenterCrop(size)


def with_transform(dataset: Any, transform: Callable[..., Any] | None) -> tuple[Any, Callable[..., Any] | None]:
    """Gives the dataset that makes the samples, and the transform that it does not apply itself."""
    if transform is None or not isinstance(dataset, StoreDataset) or dataset.makes_its_own_samples:
        return dataset, transform
    dataset = copy.copy(dataset)  # the caller's stays as it is
    if isinstance(transform, Decoder):
        dataset.decode, dataset.transform = transform, None
    else:
        dataset.transform = transform
    return dataset, None


def create_batch_sampler(
    dataset: Any,
    sampler: Sampler[int] | Iterable[int] | None,
    batch_size: int,
    *,
    shuffle: bool,
    distributed: bool | None,
    seed: int,
    drop_last: bool,
) -> Any:
    """Gives the indices of the batches, in the order that the options of create_loader say."""
    ranks: dict[str, Any] = {"num_replicas": 1, "rank": 0} if distributed is False else {}
    if distributed and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise OptionError("distributed=True needs torch.distributed: call init_process_group() first")
    if sampler is None:
        sampler = ShuffleSampler(dataset, **ranks, seed=seed) if shuffle else OrderedSampler(dataset, **ranks)
    elif distributed:
        raise OptionError("distributed is for the sampler that is made here: got one, which must know of the ranks")
    if isinstance(sampler, ResumableSampler):
        return KeyedBatchSampler(sampler, batch_size, drop_last)
    return BatchSampler(sampler, batch_size, drop_last)


def normalizing(
    mean: Sequence[float] | None, std: Sequence[float] | None, dtype: torch.dtype | str, *, channels_last: bool
) -> Callable[..., Any] | None:
    """Gives what normalizes the images, if they are to be."""
    if (mean is None) != (std is None):
        raise OptionError(f"mean and std must both be given, or both be None, got mean={mean} and std={std}")
    if isinstance(dtype, str):
        if dtype not in _DTYPES:
            raise OptionError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
        dtype = _DTYPES[dtype]
    if mean is None or std is None:
        if channels_last:
            raise OptionError("channels_last is of normalized images: got mean=None, which leaves them as they come")
        return None
    return NormalizeBytes(mean, std, dtype=dtype, channels_last=channels_last)


class NormalizeBytes(Normalize):
    """Normalizes images of uint8, and no others: of what comes as float, a transform may have normalized it."""

    @override
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.dtype is not torch.uint8:
            raise OptionError(
                f"images must come as uint8 to be normalized, got {images.dtype}, as a transform may have normalized "
                "them: pass mean=None and std=None to leave them so (and preparation=Normalize(...) to normalize them)"
            )
        return super().forward(images)


def share_of_processors() -> int:
    """Gives the processors for this one of the processes that torchrun started on this machine."""
    return max(1, processors() // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


class Seeded:
    """Seeds the global random generators of a worker process; pickled to it."""

    def __init__(self, seed_of: Callable[[Any], int]) -> None:
        self._seed_of = seed_of

    def __call__(self, worker: int) -> None:
        """Seeds them, in the worker."""
        seed = self._seed_of(get_worker_info())
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # the global one, which transforms draw from
