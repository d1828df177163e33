"""Choose what the user of create_loader did not say, and check what was said."""

from __future__ import annotations

import copy
import multiprocessing
import os
import sys
from collections.abc import Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset

from dbloader._machine import cpu_count
from dbloader._options import number_from_environment
from dbloader.batches.shared_memory import SharedBatchPool
from dbloader.datasets.store import StoreDataset
from dbloader.decoding.center_crop import ResizeCenterCrop
from dbloader.decoding.decoder import Decoder, check_size
from dbloader.decoding.open import decode_pil
from dbloader.decoding.random_crop import RandomResizedCrop
from dbloader.errors import OptionError
from dbloader.sampling.base import ResumableSampler
from dbloader.sampling.batches import ForeignBatchSampler, SeededBatchSampler
from dbloader.sampling.ranks import is_distributed
from dbloader.sampling.shuffle import OrderedSampler, ShuffleSampler
from dbloader.stores.base import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.data import Sampler

    from dbloader.batches.base import BatchFetcher


def suits_threads(fetcher: BatchFetcher, num_workers: int) -> bool:
    """Return whether threads rather than processes should make the batches."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return True
    # Threads hold the GIL for a tenth of the time that an image takes, a fifth for small images.
    if num_workers <= 4 or fetcher.image_nbytes is None:
        return fetcher.releases_gil
    # More workers: processes, if they start at once (fork), may be started, and send batches without a copy.
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    cheap = method == "fork" and not multiprocessing.current_process().daemon and SharedBatchPool.is_supported()
    return fetcher.releases_gil and not cheap


def height_and_width(input_size: int | Sequence[int]) -> tuple[int, int]:
    """Return height and width in pixels from one number, two, or timm's three."""
    if isinstance(input_size, Sequence) and len(input_size) == 3 and input_size[0] == 3:
        input_size = input_size[1:]
    return check_size(input_size, "input_size")


def check_dataset(dataset: Any) -> None:
    """Raise OptionError unless a dataset has samples at indices."""
    if isinstance(dataset, (str, bytes, os.PathLike, Store)):
        raise OptionError(
            f"dataset must be a dataset, got {dataset!r}: open a store with LMDBDataset(place) or MongoDataset(place)"
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise OptionError(f"dataset must be map-style, with samples at indices, got {type(dataset).__name__}")
    if isinstance(dataset, Sized) and not len(dataset):
        raise OptionError(f"dataset must have samples, got {type(dataset).__name__} of length 0")


def default_transform(dataset: Any, size: tuple[int, int], *, is_training: bool) -> Decoder | None:
    """Return the decoder for a dataset that has no transform of its own, else None."""
    if _has_transform(dataset):
        return None
    if is_training:
        return RandomResizedCrop(size)
    # The longer side of the output decides, so that no part of it stays black.
    return ResizeCenterCrop(size, resize=ResizeCenterCrop(max(size)).resize)


def _has_transform(dataset: Any) -> bool:
    if isinstance(dataset, Subset):
        return _has_transform(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return any(map(_has_transform, dataset.datasets))
    if isinstance(dataset, StoreDataset) and dataset.decode is not decode_pil:
        return True
    return any(getattr(dataset, name, None) is not None for name in ("transform", "transforms"))


def with_transform(dataset: Any, transform: Callable[..., Any] | None) -> tuple[Any, Callable[..., Any] | None]:
    """Return the dataset that makes the samples, and the transform that is left to apply to them."""
    if type(dataset) is Subset:
        inner, transform = with_transform(dataset.dataset, transform)
        return Subset(inner, dataset.indices), transform
    if transform is None or not isinstance(dataset, StoreDataset) or dataset.makes_own_samples:
        return dataset, transform  # not a copy: attributes that are set on it later must take effect
    dataset = copy.copy(dataset)  # the caller's must not change
    if isinstance(transform, Decoder):
        dataset.decode, dataset.transform = transform, None
    else:
        dataset.transform = transform
    dataset.transforms = None
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
    """Return a batch sampler in the order that the options of create_loader define."""
    ranks: dict[str, Any] = {"num_replicas": 1, "rank": 0} if distributed is False else {}
    if distributed and not is_distributed():
        raise OptionError("distributed=True needs torch.distributed: call init_process_group() first")
    if sampler is None:
        sampler = ShuffleSampler(dataset, **ranks, seed=seed) if shuffle else OrderedSampler(dataset, **ranks)
    elif not isinstance(sampler, Iterable):
        raise TypeError(f"sampler must be an iterable of indices, got {type(sampler).__name__}")
    elif hasattr(sampler, "batch_size"):
        raise OptionError(f"sampler must give single indices, got {type(sampler).__name__}, which gives batches")
    elif distributed:
        raise OptionError("distributed is for the sampler that is made here: got one, which must know of the ranks")
    batches: Any
    if isinstance(sampler, ResumableSampler):
        if isinstance(dataset, Sized) and sampler.population not in (None, len(dataset)):
            raise OptionError(
                f"sampler must be made for this dataset, which has {len(dataset)} samples, "
                f"got the {type(sampler).__name__} of one of {sampler.population}"
            )
        batches = SeededBatchSampler(sampler, batch_size, drop_last)
    else:
        rank = torch.distributed.get_rank() if distributed is not False and is_distributed() else 0
        batches = ForeignBatchSampler(sampler, batch_size, drop_last, seed=seed, rank=rank)
    samples = len(sampler) if isinstance(sampler, Sized) else batch_size
    if drop_last and 0 < samples < batch_size:
        raise OptionError(
            f"a batch of batch_size={batch_size} is more than the {samples} samples of this process, and incomplete "
            "batches are left out in training: pass a smaller one, or drop_last=False"
        )
    return batches


def cpu_share() -> int:
    """Return this process's share of the CPUs, where torchrun started several on this machine."""
    return max(1, cpu_count() // max(1, number_from_environment("LOCAL_WORLD_SIZE", 1)))


def check_uint8(images: Any) -> torch.Tensor:
    """Return uint8 images, and refuse floats, which a transform may already have normalized."""
    if not isinstance(images, torch.Tensor):
        raise OptionError(
            f"a batch must have a tensor of images, first or as 'image', to be normalized, got "
            f"{type(images).__name__} there: pass normalize=None to take batches as collate_fn makes them"
        )
    if images.dtype is not torch.uint8:
        raise OptionError(
            f"images must come as uint8 to be normalized, got {images.dtype}, as a transform may have normalized "
            "them: pass normalize=None to leave them so (and preparation=Normalize(...) to normalize them)"
        )
    return images
