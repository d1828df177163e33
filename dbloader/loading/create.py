"""Create a loader for training or evaluation on images from the parts of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from dbloader._options import check_choice, checked_flag, whole_number
from dbloader.batches.create import create_fetcher
from dbloader.batches.replacing import ReplacingBatchFetcher, find_store
from dbloader.batches.skipped import Skip, SkipLimit
from dbloader.datasets.fields import image_and_label
from dbloader.device.normalize import Normalize
from dbloader.device.preparation import Preparation
from dbloader.device.transfer import resolve_device
from dbloader.errors import OptionError
from dbloader.loading.defaults import (
    check_dataset,
    check_uint8,
    cpu_share,
    create_batch_sampler,
    default_transform,
    height_and_width,
    suits_threads,
    with_transform,
)
from dbloader.loading.prefetch import PrefetchLoader
from dbloader.loading.processes import ProcessLoader
from dbloader.loading.threads import ThreadLoader
from dbloader.sampling.base import ResumableSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch
    from torch.utils.data import Sampler

_IMAGENET = Normalize()


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
    sampler: Sampler[int] | Iterable[int] | None = None,
    distributed: bool | None = None,
    seed: int = 0,
    drop_last: bool | None = None,
    on_error: Literal["raise"] | Skip = "raise",
    num_workers: int | None = None,
    worker_type: Literal["auto", "threads", "processes"] = "auto",
    prefetch_factor: int | None = None,
) -> PrefetchLoader[Any]:
    """Return a PrefetchLoader of batches (images, labels) that are ready for a network, like timm's create_loader.

    What runs where::

        background thread   takes the indices of the next batch from the sampler
            | indices       in the order of (seed, epoch)
        workers             read the records, decode, crop, resize and flip their images to uint8; threads
            |               share the images of a batch, a process makes whole batches
            | uint8 batch   in pinned memory (threads) or shared memory (processes), prefetch_factor ahead
        background thread   queues on a CUDA stream of its own: copy to the device, normalize, preparation;
            |               on the CPU it does this work itself
            | float batch   on the device, at most two ahead
        your thread         next(): your CUDA stream waits for the other one's work; then your training step

    Each ``iter()`` is the next epoch, in its own order; ``state_dict()`` and ``load_state_dict()`` resume in the middle
    of one. Order and augmentation are a pure function of (seed, epoch, position), so the batches are the same for any
    number and kind of workers. (Not so for code that draws from global random generators, such as torchvision's
    transforms.)

    Args:
        dataset: Any map-style dataset: LMDBDataset, MongoDataset, a Subset of one, torchvision's, timm's. It is not
            changed. With ``fields`` the batches are dicts, and a Decoder crops image, masks and boxes together
            (docs/masks.md). (A ConcatDataset needs a random Decoder as ``transform``:
            as the ``decode`` of a part it would not know the position in the epoch.)
        input_size: Height and width of the images in pixels: one number for both, two, or timm's three of which the
            first is 3; 224 if None. In evaluation, the output's longer side shows 0.875 of an image's shorter side. It
            is an error with a dataset that has a ``transform`` or ``decode`` of its own.
        batch_size: Samples in a batch of this process; it must be given.
        is_training: Shuffle, crop at random and flip; otherwise keep the order, resize and crop the center.
        transform: Applied to each image: a Decoder, or a callable that takes PIL images. ``"auto"`` is
            RandomResizedCrop(input_size) or ResizeCenterCrop(input_size), unless the dataset has a ``transform`` or
            ``decode`` of its own, which is then used. One given here takes the place of that of a store's dataset, and
            comes after that of any other. None applies nothing.
        collate_fn: Makes a batch of a list of samples; None is torch's and, for the stores' datasets, `Collate`, which
            is the fastest: boxes become lists of tensors, and lists of numbers one tensor.
        device: Where the batches go, as in PrefetchLoader; None leaves them where they are made.
        normalize: Turns the uint8 images into floats on the device: a ``dbloader.device.Normalize``, which has mean,
            std, dtype and memory format. The default has ImageNet's mean and std. None leaves the images uint8.
        preparation: What else to do with each batch on the device, after normalizing: a callable that takes the images,
            such as ``RandomErasing(0.25)``, or a Preparation of several.
        sampler: The order, in place of ShuffleSampler or OrderedSampler. One of dbloader's must be made for a dataset
            of this length; it may draw any number of samples. A loader with any other sampler cannot be resumed. Then
            random decoding is still the same for all workers, but RandomErasing draws a number with torch's global
            generator at each ``iter()``.
        distributed: Whether the processes of torch.distributed share the samples; None: if it is initialized.
        seed: Of the order and all random numbers; the same in all processes.
        drop_last: Leave out the last batch if it has fewer samples; None: in training.
        on_error: ``"raise"`` raises the error of a damaged record or image. With ``dbloader.Skip(share)`` another
            sample takes its place.
        num_workers: None for one per CPU that this process may use (in a container, of its quota), shared by
            torchrun's processes on a machine. 0 makes the batches in the background thread.
        worker_type: ``"threads"`` start at once, need little memory, and suit the stores' datasets with decoders, which
            release the GIL; ``"processes"`` suit transforms in Python, and many workers. ``"auto"`` takes threads for
            such datasets with up to 4 workers, and where processes are not forked. Processes keep the dataset as it was
            when they started.
        prefetch_factor: Batches ahead for each worker process, or for all threads together; 2 if None.

    Raises:
        OptionError: An option is out of its range or does not fit another; the dataset has no samples; the device is
            not present. From ``next()``: a record without a label in a batch of (image, label).
        LoaderError: From ``next()``: more samples were skipped than ``Skip`` accepts.
        TypeError: An option has the wrong type, such as a str or a number in place of True or False.
    """
    if batch_size is None:
        raise TypeError("batch_size must be given: create_loader(dataset, input_size, batch_size), or by its name")
    check_dataset(dataset)
    is_training = checked_flag("is_training", is_training)
    drop_last = checked_flag("drop_last", drop_last, none=True)
    distributed = checked_flag("distributed", distributed, none=True)
    size = height_and_width(224 if input_size is None else input_size)
    check_choice("worker_type", worker_type, ("auto", "threads", "processes"))
    if on_error != "raise" and not isinstance(on_error, Skip):
        raise OptionError(f"on_error must be 'raise' or dbloader.Skip(share), got {on_error!r}")
    if normalize is not None and not isinstance(normalize, Normalize):
        raise TypeError(f"normalize must be a dbloader.device.Normalize or None, got {normalize!r}")
    if transform is not None and transform != "auto" and not callable(transform):
        raise TypeError(f"transform must be 'auto', a callable or None, got {transform!r}")
    if collate_fn is not None and not callable(collate_fn):
        raise TypeError(f"collate_fn must be a callable or None, got {collate_fn!r}")
    num_workers = cpu_share() if num_workers is None else whole_number("num_workers", num_workers, 0)
    prefetch_factor = 2 if prefetch_factor is None else whole_number("prefetch_factor", prefetch_factor, 1)
    if isinstance(transform, str):
        transform = default_transform(dataset, size, is_training=is_training)
        if transform is None and input_size is not None:
            raise OptionError(
                f"the dataset's own transform or decode wins over input_size={input_size!r}, and nothing is cropped or "
                "flipped besides: leave input_size out, or pass transform=RandomResizedCrop(...) or another Decoder"
            )
    decoded, transform = with_transform(dataset, transform)
    batches = create_batch_sampler(
        dataset,
        sampler,
        whole_number("batch_size", batch_size, 1),
        shuffle=is_training,
        distributed=distributed,
        seed=whole_number("seed", seed),
        drop_last=is_training if drop_last is None else drop_last,
    )
    fetcher = create_fetcher(decoded, collate_fn, transform=transform)
    skip_limit = None
    if isinstance(on_error, Skip):
        if not isinstance(batches.sampler, ResumableSampler):
            name = type(batches.sampler).__name__
            raise OptionError(
                f"on_error={on_error} needs one of dbloader's samplers, which know the next index, got {name}"
            )
        store, _ = find_store(fetcher)
        skip_limit = SkipLimit(batches.sampler, on_error, None if store is None else store.root)
        # The tester collates one sample to its number, whatever collate_fn makes of several.
        fetcher = ReplacingBatchFetcher(fetcher, create_fetcher(decoded, len, transform=transform), skip_limit)
    steps: list[Any] = [] if normalize is None else [check_uint8, normalize]
    if preparation is not None:
        steps.append(preparation)
    loader: Any
    if worker_type == "threads" or (worker_type == "auto" and suits_threads(fetcher, num_workers)):
        loader = ThreadLoader(
            dataset,
            batch_sampler=batches,
            num_workers=num_workers,
            pin_memory=device is not None and resolve_device(device).type == "cuda",
            prefetch_factor=prefetch_factor,
            timed=True,
            _fetcher=fetcher,
        )
    else:
        loader = ProcessLoader(
            fetcher,
            batches,
            num_workers,
            source_dataset=dataset,
            prefetch_factor=prefetch_factor,
        )
    return PrefetchLoader(
        loader,
        device,
        preparation=Preparation(*steps, **image_and_label(dataset)) if steps else None,
        _skip_limit=skip_limit,
    )
