"""Create a loader for training or evaluation on images."""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
from collections.abc import Iterable, Sequence, Sized
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, Never

import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset

from dbloader._extensions import extension, has_extensions
from dbloader._machine import cpu_count, local_ranks
from dbloader._options import check_choice, checked_flag, whole_number
from dbloader.batches.fetchers import create_fetcher
from dbloader.datasets.base import CompositeDataset
from dbloader.datasets.fields import image_and_label
from dbloader.datasets.store import StoreDataset
from dbloader.decoding.crops import RandomResizedCrop, ResizeCenterCrop
from dbloader.decoding.decoder import Decoder, check_size
from dbloader.decoding.open import decode_pil
from dbloader.device.normalize import Normalize
from dbloader.device.preparation import Preparation
from dbloader.device.transfer import resolve_device
from dbloader.errors import OptionError
from dbloader.loading.prefetch import PrefetchLoader
from dbloader.loading.processes import ProcessLoader
from dbloader.loading.threads import ThreadLoader
from dbloader.sampling.base import ResumableSampler
from dbloader.sampling.batches import ForeignBatchSampler, SeededBatchSampler
from dbloader.sampling.ranks import is_distributed
from dbloader.sampling.shuffle import OrderedSampler, ShuffleSampler
from dbloader.stores.base import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.data import Sampler

    from dbloader.batches.base import BatchFetcher

_IMAGENET = Normalize()

# Threads make at least this many samples ahead for each thread. So all other threads stay busy while one sample takes
# 20 times longer than usual.
_SAMPLES_AHEAD = 24

# Remedies in error messages: what to pass in place of options of torch's DataLoader and timm's create_loader.
_INSTEAD = {
    "shuffle": "is_training=True, which also crops at random and flips, or sampler=ShuffleSampler(dataset)",
    "generator worker_seeding": "seed=0, which decides all random numbers",
    "pin_memory pin_memory_device persistent_workers in_order use_prefetcher": "nothing, because this is always done",
    "batch_sampler timeout worker_init_fn multiprocessing_context": "it to the DataLoader inside a PrefetchLoader",
    "mean std": "normalize=dbloader.device.Normalize(mean, std)",
    "img_dtype fp16 channels_last": "normalize=dbloader.device.Normalize(dtype=torch.float16, channels_last=True)",
    "scale ratio hflip interpolation crop_pct": "transform=RandomResizedCrop(...) or another of dbloader.decoding",
    "re_prob re_mode re_count": "preparation=dbloader.device.RandomErasing(0.25, mode='pixel')",
    "auto_augment color_jitter color_jitter_prob grayscale_prob gaussian_blur_prob vflip no_aug tf_preprocessing "
    "crop_mode train_crop_mode crop_border_pixels": "transform=timm.data.create_transform(..., use_prefetcher=True)",
    "num_aug_repeats num_aug_splits re_split use_multi_epochs_loader": "it to timm's create_loader",
}


def create_loader(
    dataset: Any,
    input_size: int | Sequence[int] | None = None,
    batch_size: int | None = None,
    *,
    is_training: bool = False,
    transform: Callable[..., Any] | Literal["auto"] | None = "auto",
    collate_fn: Callable[[list[Any]], Any] | None = None,
    device: torch.device | str | int | None = "auto",
    normalize: Normalize | None = _IMAGENET,
    preparation: Callable[..., Any] | None = None,
    fuse: bool = True,
    sampler: Sampler[int] | Iterable[int] | None = None,
    distributed: bool | None = None,
    seed: int = 0,
    drop_last: bool | None = None,
    even_batches: bool = False,
    on_error: Any = "raise",
    num_workers: int | None = None,
    worker_type: Literal["auto", "threads", "processes"] = "auto",
    prefetch_factor: int | None = None,
    **unknown: Never,
) -> PrefetchLoader[Any]:
    """Return a PrefetchLoader of batches (images, labels) that are ready for a network, like timm's create_loader.

    The work is divided like this::

        background thread   Iteration.__next__ takes the indices of the next batch from the sampler, in the order of
            |               (seed, epoch); TensorBatchFetcher.read looks up their records
            | indices       threads get a part of a batch; processes get a whole batch, or a part if the batch is late
        workers             StoreDataset.plan and Plan.decode read the records, and decode, crop, resize and flip their
            |               images
            | uint8 batch   in pinned memory (threads) or shared memory (processes), prefetch_factor ahead
        background thread   Transfer.start copies to the device, then Preparation.forward normalizes and prepares; on
            |               CUDA both only queue their work, on a separate stream
            | float batch   on the device, at most two ahead
        your thread         BackgroundBatches.__next__ lets your CUDA stream wait for this work; then your training step

    Each ``iter()`` begins the next epoch, in a new order. ``state_dict()`` and ``load_state_dict()`` resume in the
    middle of an epoch. Order and augmentation are a pure function of (seed, epoch, position), so the batches are the
    same for any number and kind of workers. They may differ only if a transform draws from global random generators,
    such as a transform of torchvision that is not fused (see ``fuse``).

    Args:
        dataset: Any map-style dataset: LMDBDataset, MongoDataset, a Subset, a mixture (``mix``), or a dataset of
            torchvision or timm. The dataset is not changed. If it has ``fields``, batches are dicts, and a Decoder
            crops image, masks and boxes together (docs/masks.md). For a ConcatDataset, pass a random Decoder as
            ``transform``: as ``decode`` of inner datasets, it gets its crops from torch's generator, not ``seed``.
        input_size: Height and width of the images in pixels: one number for both, two numbers, or (3, height, width) as
            in timm; 224 if None. In evaluation, an image's shorter side is first resized to max(height, width) / 0.875,
            then the center is cropped. ``input_size`` is refused with ``transform``, and for a dataset that has its own
            ``transform`` or ``decode``.
        batch_size: Samples in a batch of this process; required.
        is_training: Shuffle, crop at random and flip; otherwise keep the order, resize and crop the center.
        transform: Applied to each image: a Decoder, or a callable that takes PIL images. ``"auto"`` is
            RandomResizedCrop(input_size) or ResizeCenterCrop(input_size), or nothing if the dataset has its own
            ``transform`` or ``decode``. A transform that you pass replaces the transform of a store's dataset. For
            other datasets, your transform is applied after their own. None adds no transform.
        collate_fn: Makes a batch of a list of samples. None means torch's default_collate. For a store's dataset, None
            means `Collate`, which is faster. `Collate` turns boxes into a list of tensors, and lists of numbers into
            one tensor.
        device: The device for the batches, as in PrefetchLoader; None leaves them in the memory of the CPU.
        normalize: Turns the uint8 images into floats on the device: a ``dbloader.device.Normalize``, which has mean,
            std, dtype and memory format. The default has ImageNet's mean and std, and does nothing if the transform has
            a step that makes floats, such as ToTensor. None leaves the images uint8.
        preparation: Further steps for each batch on the device, after normalizing: a callable that takes the images,
            such as ``RandomErasing(0.25)``, or a Preparation of several steps.
        fuse: Whether to replace known steps of torchvision's and timm's transforms by a Decoder, and by steps on whole
            batches on the device (docs/transforms.md). This is faster. ``print(loader)`` shows these steps.
        sampler: The order, in place of ShuffleSampler or OrderedSampler. A sampler of dbloader must be made for a
            dataset of this length, but may draw any number of samples. With any other sampler, the loader cannot be
            resumed, and each ``iter()`` draws a seed for RandomErasing from torch's global generator. Random crops are
            still the same for any number of workers.
        distributed: Whether torch.distributed's processes share the samples; None means yes if it is initialized.
        seed: The seed of the order and of all random numbers; the same in all processes.
        drop_last: Leave out the last batch if it has fewer samples; None means yes in training.
        even_batches: Repeat samples in evaluation, so each rank gets the same number of batches of ``batch_size``. A
            bool tensor of shape (batch,) is added to each batch, as the last element or as ``"valid"`` in a dict. Its
            values are False for repeated samples.
        on_error: ``"raise"`` raises the error of a damaged record or image. ``dbloader.Skip(share)`` uses another
            sample instead.
        num_workers: Number of threads or processes. None means the number of CPUs that this process and its container
            may use, divided by the number of torchrun's processes on the machine. 0 makes the batches in the background
            thread.
        worker_type: ``"processes"`` are faster, because Python code in threads waits for the GIL. ``"threads"``
            start at once and need less memory. ``"auto"`` uses processes. Exception: a store's dataset with a Decoder
            gets threads where Python does not fork processes, and in daemonic processes, which may not start others.
            Worker processes do not see later changes of the dataset.
        prefetch_factor: Limit for the batches that each worker process makes ahead of the batch that is copied next.
            Threads share one such limit. None means 2 for processes. For threads, None means at least 2 batches, and
            at least 24 samples for each thread. This keeps the other threads busy during a slow sample.
        unknown: Any other option raises a TypeError, which names the option to pass instead.

    Raises:
        OptionError: An option is out of its range or contradicts another; the dataset has no samples; the device is
            not present. From ``next()``: a batch of (image, label) has a record without a label.
        LoaderError: From ``next()``: more samples were skipped than ``Skip`` accepts.
        TypeError: An option has the wrong type, such as a str or a number in place of True or False.
    """
    for name in unknown:
        known = [*create_loader.__annotations__][:-2]  # without ``unknown`` and ``return``
        found = [remedy for names, remedy in _INSTEAD.items() if name in names.split()]
        found = found or get_close_matches(name, known, 1) or [f"one of {', '.join(known)}"]
        raise TypeError(f"create_loader has no option {name!r}: pass {found[0]}")
    if batch_size is None:
        raise TypeError("batch_size must be given, such as create_loader(dataset, batch_size=256)")
    check_dataset(dataset)
    is_training = checked_flag("is_training", is_training)
    fuse = checked_flag("fuse", fuse)
    drop_last = checked_flag("drop_last", drop_last, none=True)
    distributed = checked_flag("distributed", distributed, none=True)
    if checked_flag("even_batches", even_batches) and (is_training or sampler is not None or drop_last):
        raise OptionError("even_batches=True is for evaluation in order: leave out is_training, sampler and drop_last")
    if even_batches and on_error != "raise":
        raise OptionError("even_batches=True counts each sample once, but Skip replaces samples: leave out on_error")
    size = height_and_width(224 if input_size is None else input_size)
    check_choice("worker_type", worker_type, ("auto", "threads", "processes"))
    if on_error != "raise" and not isinstance(on_error, extension("Skip")):
        raise OptionError(f"on_error must be 'raise' or dbloader.Skip(share), got {on_error!r}")
    if normalize is not None and not isinstance(normalize, Normalize):
        raise TypeError(f"normalize must be a dbloader.device.Normalize or None, got {normalize!r}")
    if transform is not None and transform != "auto" and not callable(transform):
        raise TypeError(f"transform must be 'auto', a callable or None, got {transform!r}")
    if collate_fn is not None and not callable(collate_fn):
        raise TypeError(f"collate_fn must be a callable or None, got {collate_fn!r}")
    num_workers = cpu_share() if num_workers is None else whole_number("num_workers", num_workers, 0)
    prefetch_factor = whole_number("prefetch_factor", prefetch_factor, 1, none=True)
    automatic = isinstance(transform, str)
    if isinstance(transform, str):
        transform = default_transform(dataset, size, is_training=is_training)
    if input_size is not None and (transform is None or not automatic):
        whose = "the dataset has a transform or decode of its own" if automatic else "transform= was passed"
        remedy = "leave input_size out, or pass only transform=RandomResizedCrop(...) or another Decoder"
        raise OptionError(f"input_size={input_size!r} has no effect, because {whose}: {remedy}")
    # A collate_fn must get exactly the samples that the transform makes. So with a collate_fn, nothing is fused.
    plan = extension("make_plan")(dataset, transform, fuse=fuse and collate_fn is None) if has_extensions() else None
    if plan and plan.makes_floats and normalize is _IMAGENET:
        normalize = None
    decoded = dataset
    for one in plan.transforms if plan else [transform]:
        decoded, transform = with_transform(decoded, one, only_missing=automatic)
    batches = create_batch_sampler(
        dataset,
        sampler,
        whole_number("batch_size", batch_size, 1),
        shuffle=is_training,
        distributed=distributed,
        seed=whole_number("seed", seed),
        drop_last=is_training if drop_last is None else drop_last,
        even=even_batches,
    )
    pin_memory = device is not None and resolve_device(device).type == "cuda"
    fetcher = create_fetcher(decoded, collate_fn, transform=transform, pin_memory=pin_memory)
    if on_error != "raise":
        if not isinstance(batches.sampler, ResumableSampler):
            name = type(batches.sampler).__name__
            raise OptionError(
                f"on_error={on_error} needs one of dbloader's samplers, to find the next sample, got {name}"
            )
        # ``tester`` tries single samples. It collates with len, because the user's collate_fn may refuse one sample.
        tester = create_fetcher(decoded, len, transform=transform)
        fetcher = extension("ReplacingBatchFetcher")(fetcher, tester, batches.sampler, on_error)
    if even_batches:
        fetcher = extension("EvenBatchFetcher")(fetcher, len(dataset))
    threads = (choose_workers(fetcher, num_workers) if worker_type == "auto" else worker_type) == "threads"
    kind = ThreadLoader if threads else ProcessLoader
    if prefetch_factor is None:
        prefetch_factor = max(2, math.ceil(_SAMPLES_AHEAD * num_workers / batch_size)) if threads else 2
    loader: Any = kind(fetcher, batches, num_workers, dataset=dataset, prefetch_factor=prefetch_factor)
    steps: list[Any] = [*plan.tail] if plan else []
    if normalize is not None:
        steps += [check_uint8, normalize]
    if preparation is not None:
        steps.append(preparation)
    prepared = Preparation(*steps, **image_and_label(dataset)) if steps else None
    prefetched: PrefetchLoader[Any] = PrefetchLoader(loader, device, preparation=prepared)
    prefetched.fused = plan.text if plan else ""
    return prefetched


def check_dataset(dataset: Any) -> None:
    """Raise OptionError unless a dataset can be indexed, and has samples."""
    if isinstance(dataset, (str, bytes, os.PathLike, Store)):
        raise OptionError(
            f"dataset must be a dataset, got {dataset!r}: open a store with LMDBDataset(place) or MongoDataset(place)"
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise OptionError(f"dataset must be map-style, with samples at indices, got {type(dataset).__name__}")
    if isinstance(dataset, Sized) and not len(dataset):
        raise OptionError(f"dataset must have samples, got {type(dataset).__name__} of length 0")


def height_and_width(input_size: int | Sequence[int]) -> tuple[int, int]:
    """Return height and width in pixels from one number, two numbers, or timm's (3, height, width)."""
    if isinstance(input_size, Sequence) and len(input_size) == 3 and input_size[0] == 3:
        input_size = input_size[1:]
    return check_size(input_size, "input_size")


def default_transform(dataset: Any, size: tuple[int, int], *, is_training: bool) -> Decoder | None:
    """Return the decoder for a dataset that has no transform of its own, else None."""
    if _has_transform(dataset):
        return None
    if is_training:
        return RandomResizedCrop(size)
    # Resize for a square output with the longer side of `size`. Otherwise the image could be smaller than the output.
    return ResizeCenterCrop(size, resize=ResizeCenterCrop(max(size)).resize)


def _has_transform(dataset: Any) -> bool:
    if isinstance(dataset, Subset):
        return _has_transform(dataset.dataset)
    if isinstance(dataset, CompositeDataset):  # its datasets without a transform get the default transform
        return all(map(_has_transform, dataset.datasets))
    if isinstance(dataset, ConcatDataset):
        return any(map(_has_transform, dataset.datasets))
    if isinstance(dataset, StoreDataset) and dataset.decode is not decode_pil:
        return True
    return any(getattr(dataset, name, None) is not None for name in ("transform", "transforms"))


def with_transform(
    dataset: Any, transform: Callable[..., Any] | None, *, only_missing: bool = False
) -> tuple[Any, Any]:
    """Return a dataset, and the transform that must still be applied to its samples, or None.

    For a store's dataset, return a copy that applies the transform itself. For a CompositeDataset, the second result is
    a list with the transform for each dataset. With ``only_missing``, datasets that have a transform keep it.
    """
    if isinstance(dataset, CompositeDataset):
        pairs = [
            (part, None) if only_missing and _has_transform(part) else with_transform(part, transform)
            for part in dataset.datasets
        ]
        return dataset.replaced([part for part, _ in pairs]), [rest for _, rest in pairs]
    if type(dataset) is Subset:
        inner, rest = with_transform(dataset.dataset, transform, only_missing=only_missing)
        return Subset(inner, dataset.indices), rest
    if transform is None or not isinstance(dataset, StoreDataset) or dataset.makes_own_samples:
        return dataset, transform  # no copy, so the loader sees later changes of the caller's dataset
    dataset = copy.copy(dataset)  # because the caller's dataset must not change
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
    even: bool = False,
) -> Any:
    """Return a batch sampler in the order that the options of create_loader define."""
    ranks: dict[str, Any] = {"num_replicas": 1, "rank": 0} if distributed is False else {}
    if distributed and not is_distributed():
        raise OptionError("distributed=True needs torch.distributed: call init_process_group() first")
    if sampler is None:
        if not shuffle:
            sampler = OrderedSampler(dataset, **ranks, even_batch_size=batch_size if even else None)
        elif isinstance(dataset, CompositeDataset):
            sampler = dataset.sampler(**ranks, seed=seed)
        else:
            sampler = ShuffleSampler(dataset, **ranks, seed=seed)
    elif not isinstance(sampler, Iterable):
        raise TypeError(f"sampler must be an iterable of indices, got {type(sampler).__name__}")
    elif hasattr(sampler, "batch_size"):
        raise OptionError(f"sampler must give single indices, got {type(sampler).__name__}, which gives batches")
    elif distributed:
        raise OptionError(
            "distributed=True has no effect on sampler=, which must share the samples itself: leave out one of them"
        )
    batches: Any
    if isinstance(sampler, ResumableSampler):
        if isinstance(dataset, Sized) and sampler.population not in (None, len(dataset)):
            raise OptionError(
                f"sampler must be made for this dataset, which has {len(dataset)} samples, "
                f"got a {type(sampler).__name__} for {sampler.population} samples"
            )
        batches = SeededBatchSampler(sampler, batch_size, drop_last)
    else:
        rank = torch.distributed.get_rank() if distributed is not False and is_distributed() else 0
        batches = ForeignBatchSampler(sampler, batch_size, drop_last, seed=seed, rank=rank)
    samples = len(sampler) if isinstance(sampler, Sized) else batch_size
    if drop_last and 0 < samples < batch_size:
        raise OptionError(
            f"batch_size={batch_size} is more than the {samples} samples of this process, so drop_last leaves out "
            "the only batch: pass a smaller batch_size, or drop_last=False"
        )
    return batches


def cpu_share() -> int:
    """Return the number of CPUs, divided by the number of torchrun's processes on this machine."""
    return max(1, cpu_count() // local_ranks())


def choose_workers(fetcher: BatchFetcher, num_workers: int) -> Literal["threads", "processes"]:
    """Return which workers to use by default."""
    if not fetcher.releases_gil:
        return "processes"
    # A fetcher that releases the GIL still holds it for a tenth of the work on an image, or half if the image is small.
    # So processes are faster, unless the images are not one tensor, and must go through a pipe, which is slow.
    if not num_workers or fetcher.image_nbytes is None:
        return "threads"
    # Processes that are not forked import torch, which takes seconds. A daemonic process may not start processes.
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return "threads" if method != "fork" or multiprocessing.current_process().daemon else "processes"


def check_uint8(images: Any) -> torch.Tensor:
    """Return uint8 images. Raise OptionError for floats, which a transform may already have normalized."""
    if not isinstance(images, torch.Tensor):
        raise OptionError(
            "to be normalized, a batch must have a tensor of images, as its first part or as 'image', got "
            f"{type(images).__name__}: pass normalize=None to normalize nothing"
        )
    if images.dtype is not torch.uint8:
        raise OptionError(
            f"images must be uint8 to be normalized, got {images.dtype}: pass normalize=None, and "
            "preparation=Normalize(...) if no transform has normalized them yet"
        )
    return images
