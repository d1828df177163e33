"""A loader for training or evaluation on images, put together from the parts of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from dbloader._options import checked_flag, whole_number
from dbloader.batches.create import create_fetcher
from dbloader.device.compose import Preparation
from dbloader.device.decode.decoder import DeviceDecoder
from dbloader.device.transfer import resolve_device
from dbloader.errors import OptionError
from dbloader.loading.defaults import (
    Seeded,
    check_dataset,
    check_first_fields,
    create_batch_sampler,
    decoder_of,
    default_transform,
    erasing,
    height_and_width,
    normalizing,
    share_of_processors,
    suits_threads,
    with_transform,
)
from dbloader.loading.prefetch import PrefetchLoader
from dbloader.loading.processes import ProcessLoader
from dbloader.loading.threads import ThreadLoader

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
    """Return a PrefetchLoader of batches (images, labels), ready for a network, in the spirit of timm's create_loader.

    The images are decoded, cropped and resized to uint8 by workers, sent to the device as such, and normalized there.
    Each ``iter()`` is the next epoch, in its own order; ``state_dict()`` and ``load_state_dict()`` go on in the middle
    of one. Order and augmentation are a pure function of (seed, epoch, position), so the batches are the same for any
    number and kind of workers. (Except in what draws from global random generators, such as torchvision's
    transforms.)

    Args:
        dataset: Any map-style dataset: LMDBDataset, MongoDataset, a Subset of one, torchvision's, timm's; of those with
            ``fields``, the batches are dicts. It is left as it is. (In a ConcatDataset, a Decoder that draws must be
            given as ``transform``: as the ``decode`` of a part it cannot know its place in the epoch.)
        batch_size: Samples in a batch, of this process.
        input_size: Height and width in pixels of the images: one number for both, two, or timm's three of which the
            first is 3. In evaluation, 7/8 of the shorter side of an image are seen along the longer side of the output.
        is_training: Shuffle, crop at random and flip; else keep the order, resize and crop the middle.
        transform: Applied to each image. ``"auto"`` is RandomResizedCrop(input_size) or ResizeCenterCrop(input_size),
            unless the dataset has a transform of its own, which then counts (so does a dataset's own ``decode``). A
            Decoder, such as these with other options, or a callable that takes PIL images. None: nothing is applied.
        collate_fn: Makes a batch of a list of samples; None is torch's, and the fastest for the stores' datasets.
        decode: Where the images of a store's dataset are decoded: by the ``"workers"``; or on the ``"device"``, to
            which they go as files. On CUDA nvImageCodec or torchvision does that, where one is installed, and the CPU
            what they do not take; see ``dbloader.device.decode``. The crops are the same, the pixels nearly.
        device: Where the batches go, as in PrefetchLoader; None leaves them where they are made.
        mean: Of each channel, for images in 0 to 1; None does not normalize, and the images stay uint8.
        std: Likewise.
        dtype: Of the normalized images: float32, float16 or bfloat16.
        channels_last: Whether the normalized images have that memory format.
        re_prob: Probability that RandomErasing erases a part of an image; in training only, like the next two.
        re_mode: With what: ``"const"`` (the mean), ``"rand"`` (a random color) or ``"pixel"`` (noise).
        re_count: How many rectangles.
        preparation: What else is to be done with each batch on the device, after that: a callable on the images, or a
            Preparation, such as torchvision's MixUp.
        sampler: The order, in place of ShuffleSampler or OrderedSampler. One of dbloader's must be made for a dataset
            of this length, however many samples it draws in an epoch. With one that is not dbloader's the loader cannot
            be resumed, as nobody knows what its order depends on. What is random in the decoding is the same for all
            workers nevertheless; RandomErasing draws a number with torch's global generator at each ``iter()``.
        distributed: Whether the samples are shared by the processes of torch.distributed; None: if it is initialized.
        seed: Of the order and all that is random; the same in all processes.
        drop_last: Leave out the last batch if it has fewer samples; None: in training.
        num_workers: None for as many as there are processors for this process (of those of its machine, where torchrun
            started several). 0 makes the batches in the background thread.
        workers: What they are. ``"threads"`` have no start-up and little memory, and suit the stores' datasets with
            decoders, which need little of Python's lock; ``"processes"`` suit transforms in Python, and many workers.
            ``"auto"`` chooses: with such datasets, threads for up to 4 workers, and where processes are not forked.
            Processes have the dataset as it was when they began.
        worker_threads: Threads in each worker process, for machines with many cores; an error without such workers.
        worker_seeding: How torch's, Python's and numpy's global random generators are seeded in worker processes:
            ``"all"``, each differently, as torch does it; or a callable from torch's WorkerInfo to the seed of all,
            which is an error where the workers are threads.
        persistent_workers: Keep worker processes from one epoch to the next.
        prefetch_factor: Batches ahead for each worker process, or of all threads together; 2 if None.
        use_prefetcher: False makes and sends each batch when it is asked for, without a thread: to compare, and to
            debug.

    Raises:
        OptionError: An option is out of its range or does not fit another; the dataset has no samples; the device is
            not present. From ``next()`` where a record without a label comes into a batch of (image, label).
        TypeError: An option is of another type, such as a str or a number where True or False is meant.
    """
    check_dataset(dataset)
    is_training = checked_flag("is_training", is_training)
    channels_last = checked_flag("channels_last", channels_last)
    persistent_workers = checked_flag("persistent_workers", persistent_workers)
    use_prefetcher = checked_flag("use_prefetcher", use_prefetcher)
    drop_last = checked_flag("drop_last", drop_last, none=True)
    distributed = checked_flag("distributed", distributed, none=True)
    size = height_and_width(input_size)
    _check_kinds(workers=workers, decode=decode, transform=transform, collate_fn=collate_fn, seeding=worker_seeding)
    count = share_of_processors() if num_workers is None else whole_number("num_workers", num_workers, 0)
    ahead = 2 if prefetch_factor is None else whole_number("prefetch_factor", prefetch_factor, 1)
    largest = whole_number("batch_size", batch_size, 1)
    threads = whole_number("worker_threads", worker_threads, 1)
    if decode == "device" and device is None:
        raise OptionError("decode='device' needs a device to decode on, got device=None")
    on_cuda = device is not None and resolve_device(device).type == "cuda"
    if isinstance(transform, str):
        transform = default_transform(dataset, size, is_training=is_training)
    maker_dataset, transform = with_transform(dataset, transform)
    check_first_fields(maker_dataset)
    batches = create_batch_sampler(
        dataset,
        sampler,
        largest,
        shuffle=is_training,
        distributed=distributed,
        seed=whole_number("seed", seed),
        drop_last=is_training if drop_last is None else drop_last,
    )
    maker = create_fetcher(maker_dataset, collate_fn, transform=transform, encoded=decode == "device")
    steps: list[Any] = [
        DeviceDecoder(decoder_of(maker_dataset), device) if decode == "device" and device is not None else None,
        normalizing(mean, std, dtype, channels_last=channels_last),
        erasing(re_prob, re_mode, re_count, is_training=is_training),
        preparation,
    ]
    loader: Any
    if workers == "threads" or (workers == "auto" and suits_threads(maker, count)):
        if threads != 1 or worker_seeding != "all":
            raise OptionError(
                "worker_threads and worker_seeding are of worker processes, and these workers are threads: "
                f"pass workers='processes', got workers={workers!r}"
            )
        loader = ThreadLoader(
            dataset,
            batch_sampler=batches,
            num_workers=count,
            pin_memory=on_cuda,
            prefetch_factor=ahead,
            timed=True,
            maker=maker,
        )
    else:
        if threads != 1 and not count:
            raise OptionError(f"worker_threads are in each worker process: got {threads} with num_workers=0")
        loader = ProcessLoader(
            maker,
            threads,
            largest,
            batches,
            count,
            source_dataset=dataset,
            prefetch_factor=ahead,
            persistent_workers=persistent_workers,
            worker_init_fn=None if worker_seeding == "all" else Seeded(worker_seeding),
            ahead=3 if use_prefetcher else 0,
        )
    return PrefetchLoader(
        loader,
        device,
        2 if use_prefetcher else 0,
        preparation=Preparation(*steps) if any(step is not None for step in steps) else None,
    )


def _check_kinds(*, workers: Any, decode: Any, transform: Any, collate_fn: Any, seeding: Any) -> None:
    """Check the options that are one of some words, or a callable."""
    if workers not in _WORKERS:
        raise OptionError(f"workers must be one of {', '.join(_WORKERS)}, got {workers!r}")
    if decode not in ("workers", "device"):
        raise OptionError(f"decode must be 'workers' or 'device', got {decode!r}")
    if transform is not None and transform != "auto" and not callable(transform):
        raise OptionError(f"transform must be 'auto', a callable or None, got {transform!r}")
    if collate_fn is not None and not callable(collate_fn):
        raise TypeError(f"collate_fn must be a callable or None, got {collate_fn!r}")
    if seeding != "all" and not callable(seeding):
        raise OptionError(f"worker_seeding must be 'all' or a callable, got {seeding!r}")
