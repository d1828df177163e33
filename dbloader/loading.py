"""A loader for training or evaluation on images, put together from the parts of this package."""

from __future__ import annotations

from collections.abc import Callable
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch.utils.data import DataLoader, IterableDataset

from dbloader.batches import MadeBatches, as_made, choose_maker
from dbloader.choosing import (
    Seeded,
    create_batch_sampler,
    default_transform,
    height_and_width,
    normalizing,
    share_of_processors,
    suits_threads,
    with_transform,
)
from dbloader.device import resolve_device
from dbloader.device_decoding import DeviceDecoder
from dbloader.errors import OptionError
from dbloader.prefetch import PrefetchLoader
from dbloader.preparation import Preparation, RandomErasing
from dbloader.threads import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.utils.data import Sampler


Transform: TypeAlias = Callable[..., Any]
Seeding: TypeAlias = "Literal['all'] | Callable[[Any], int]"

# Of the images of ImageNet's training set, as torchvision and timm have them.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_WORKERS = ("auto", "threads", "processes")


def create_loader(
    dataset: Any,
    *,
    batch_size: int,
    input_size: int | Sequence[int] = 224,
    is_training: bool = False,
    transform: Transform | Literal["auto"] | None = "auto",
    collate_fn: Callable[[list[Any]], Any] | None = None,
    decode: Literal["workers", "device"] = "workers",
    device: torch.device | str | int | None = "auto",
    mean: Sequence[float] | None = IMAGENET_MEAN,
    std: Sequence[float] | None = IMAGENET_STD,
    dtype: torch.dtype | str = torch.float32,
    channels_last: bool = False,
    re_prob: float = 0.0,
    re_mode: Literal["const", "rand", "pixel"] = "const",
    re_count: int = 1,
    preparation: Callable[..., Any] | None = None,
    sampler: Sampler[int] | Iterable[int] | None = None,
    distributed: bool | None = None,
    seed: int = 0,
    drop_last: bool | None = None,
    num_workers: int | None = None,
    workers: Literal["auto", "threads", "processes"] = "auto",
    worker_threads: int = 1,
    worker_seeding: Seeding = "all",
    persistent_workers: bool = True,
    prefetch_factor: int | None = None,
    use_prefetcher: bool = True,
) -> PrefetchLoader[Any]:
    """Gives a PrefetchLoader of batches (images, labels), ready for a network, in the spirit of timm's create_loader.

    The images are decoded, cropped and resized to uint8 by workers, sent to the device as such, and normalized there.
    Each ``iter()`` is the next epoch, in its own order; ``state_dict()`` and ``load_state_dict()`` go on in the middle
    of one. Order and augmentation are a pure function of (seed, epoch, position), so the batches are the same for any
    number and kind of workers. (Except in what draws from global random generators: transforms of others, and Mixup
    and CutMix, which are torchvision's or timm's.)

    Args:
        dataset: Any map-style dataset: LMDBDataset, MongoDataset, torchvision's, timm's; of those with ``fields``, the
            batches are dicts.
        batch_size: Samples in a batch, of this process.
        input_size: Height and width in pixels of the images: one number for both, two, or timm's three of which the
            first is 3.
        is_training: Shuffle, crop at random and flip; else keep the order, resize and crop the middle.
        transform: Applied to each image. ``"auto"`` is RandomResizedCrop(input_size) or ResizeCenterCrop(input_size),
            unless the dataset has a transform of its own, which then counts (so does a dataset's own ``decode``). A
            Decoder, such as these with other options, or a callable that takes PIL images. None: nothing is applied.
        collate_fn: Makes a batch of a list of samples; None is torch's, and the fastest for the stores' datasets.
        decode: Where the images of a store's dataset are decoded: by the ``"workers"``; or on the ``"device"``, to
            which they go as files. On CUDA nvImageCodec or torchvision does that, where one is installed, and the CPU
            what they do not take; see ``dbloader.device_decoding``. The crops are the same, the pixels nearly.
        device: Where the batches go, as in PrefetchLoader; None leaves them where they are made.
        mean: Of each channel, for images in 0 to 1; None does not normalize, and the images stay uint8.
        std: Likewise.
        dtype: Of the normalized images: float32, float16 or bfloat16.
        channels_last: Whether the normalized images have that memory format.
        re_prob: Probability that RandomErasing erases a part of an image; in training only, like the next two.
        re_mode: With what: ``"const"`` (the mean), ``"rand"`` (a random colour) or ``"pixel"`` (noise).
        re_count: How many rectangles.
        preparation: What else is to be done with each batch on the device, after that: a callable on the images, or a
            Preparation, such as of Mixup.
        sampler: The order, in place of ShuffleSampler or OrderedSampler. With one that is not dbloader's the loader
            cannot be resumed.
        distributed: Whether the samples are shared by the processes of torch.distributed; None: if it is initialized.
        seed: Of the order and all that is random; the same in all processes.
        drop_last: Leave out the last batch if it has fewer samples; None: in training.
        num_workers: None for as many as there are processors for this process (of those of its machine, where torchrun
            started several). 0 makes the batches in the background thread.
        workers: What they are. ``"threads"`` have no start-up and little memory, and suit the stores' datasets with
            decoders, which need little of Python's lock; ``"processes"`` suit transforms in Python. ``"auto"`` chooses.
        worker_threads: Threads in each worker process, for machines with many cores; only with processes.
        worker_seeding: How torch's, Python's and numpy's global random generators are seeded in worker processes:
            ``"all"``, each differently, as torch does it; or a callable from torch's WorkerInfo to the seed of all.
        persistent_workers: Keep worker processes from one epoch to the next.
        prefetch_factor: Batches ahead for each worker process, or of all threads together; 2 if None.
        use_prefetcher: False makes and sends each batch when it is asked for, without a thread: to compare, and to
            debug.

    Raises:
        OptionError: An option is out of its range or does not fit another; the device is not present.
        TypeError: An option is of another type.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise OptionError(f"dataset must be map-style, with samples at indices, got {type(dataset).__name__}")
    size = height_and_width(input_size)
    if workers not in _WORKERS:
        raise OptionError(f"workers must be one of {', '.join(_WORKERS)}, got {workers!r}")
    if worker_seeding != "all" and not callable(worker_seeding):
        raise OptionError(f"worker_seeding must be 'all' or a callable, got {worker_seeding!r}")
    on_cuda = device is not None and resolve_device(device).type == "cuda"
    if isinstance(transform, str):
        if transform != "auto":
            raise OptionError(f"transform must be 'auto', a callable or None, got {transform!r}")
        transform = default_transform(dataset, size, is_training=is_training)
    count = share_of_processors() if num_workers is None else as_index(num_workers)
    if count < 0:
        raise OptionError(f"num_workers must be at least 0, got {num_workers}")

    if decode not in ("workers", "device"):
        raise OptionError(f"decode must be 'workers' or 'device', got {decode!r}")
    steps: list[Any] = [
        normalizing(mean, std, dtype, channels_last=channels_last),
        RandomErasing(re_prob, mode=re_mode, max_count=re_count) if is_training and re_prob else None,
        preparation,
    ]
    maker_dataset, transform = with_transform(dataset, transform)
    batches = create_batch_sampler(
        dataset,
        sampler,
        batch_size,
        shuffle=is_training,
        distributed=distributed,
        seed=seed,
        drop_last=is_training if drop_last is None else drop_last,
    )
    maker = choose_maker(maker_dataset, collate_fn, transform=transform, encoded=decode == "device")
    by_threads = workers == "threads" or (workers == "auto" and suits_threads(maker))
    if decode == "device":
        if device is None:
            raise OptionError("decode='device' needs a device to decode on, got device=None")
        steps.insert(0, DeviceDecoder(maker.dataset.decode, device))
    loader: Any
    if by_threads:
        if worker_threads != 1:
            raise OptionError(f"worker_threads is of worker processes: got {worker_threads} with workers={workers!r}")
        loader = ThreadLoader(
            dataset,
            batch_sampler=batches,
            num_workers=count,
            pin_memory=on_cuda,
            prefetch_factor=prefetch_factor,
            maker=maker,
        )
    else:
        loader = DataLoader(
            MadeBatches(maker, worker_threads),
            batch_sampler=batches,
            num_workers=count,
            collate_fn=as_made,
            persistent_workers=persistent_workers and count > 0,
            prefetch_factor=(2 if prefetch_factor is None else prefetch_factor) if count else None,
            worker_init_fn=None if worker_seeding == "all" else Seeded(worker_seeding),
        )
        loader.made_of = dataset
    return PrefetchLoader(
        loader,
        device,
        2 if use_prefetcher else 0,
        preparation=Preparation(*steps) if any(step is not None for step in steps) else None,
    )
