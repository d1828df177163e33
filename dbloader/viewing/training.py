"""What a training sees: the batch of a step with its crops, and its images bit for bit.

The order, the random numbers, the crops and the pixels come from the parts of ``create_loader`` itself. This module
imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dbloader._describe import short_repr
from dbloader._options import whole_number
from dbloader.datasets.noted_errors import check_whole
from dbloader.datasets.store import StoreDataset
from dbloader.datasets.transforms import is_albumentations
from dbloader.decoding.decoder import Decoder
from dbloader.decoding.exif import TURNS
from dbloader.errors import DBLoaderError, OptionError, StoreUnreachableError
from dbloader.loading.checkpoint import SamplerCheckpoint
from dbloader.loading.create import create_batch_sampler, default_transform, height_and_width, with_transform
from dbloader.sampling.blocks import BlockShuffleSampler
from dbloader.sampling.rng import SeededIndices
from dbloader.sampling.shuffle import ShuffleSampler
from dbloader.viewing.files import shown_orientation
from dbloader.viewing.transform import to_png

if TYPE_CHECKING:
    from dbloader.records.record import Record
    from dbloader.sampling.base import ResumableSampler
    from dbloader.stores.base import Store

EPOCHS = 12
"""Epochs that the view of one record shows."""
SHOWN = 256
"""Samples of a batch that are shown."""
_MOST = 65_536  # samples of a batch, and ranks
_LONGEST = 4_096  # pixels of a side: a request cannot make the server take gigabytes


class Options(NamedTuple):
    """What decides the batches of a training, with the names and defaults of create_loader where it has them."""

    seed: int = 0
    epoch: int = 0
    batch_size: int = 32
    world_size: int = 1
    rank: int = 0
    step: int = 0
    size: str = "224"  # height and width in pixels: "224", or "192x256"
    drop_last: bool = True
    state: str = ""  # JSON of a state_dict(): gives the order, seed and epoch, and counts steps from there


def show_batch(store: Store, options: Options, transform: Any = None) -> dict[str, Any]:
    """Return the batch that create_loader gives one rank at a step, with the crop of each sample.

    Raises:
        OptionError: An option or the state is wrong, or there is no such step.
    """
    dataset = _dataset(store, options, transform)
    sampler, batches, state = _order(dataset, options)
    since = sampler.state_after()
    whole, rest = divmod(len(sampler.positions(since)), options.batch_size)
    steps = whole + (rest > 0 and not options.drop_last)
    if not steps:
        raise OptionError(f"the state is at the end of epoch {sampler.epoch}: no batch of it is left")
    whole_number("step", options.step, 0, steps - 1)
    sampler.load_state_dict(sampler.state_after(options.step * options.batch_size, since=since))
    indices: SeededIndices = next(iter(batches))
    return {
        "seed": str(indices.seed), "epoch": indices.epoch, "step": options.step, "steps": steps, "indices": [*indices],
        "order": sampler.facts(),
        "next_epoch": _state_of(state, indices.epoch + 1), **_told(transform),
        "samples": [
            _sample(dataset, SeededIndices([index], indices.seed, indices.epoch, range(position, position + 1)))
            for index, position in zip(indices[:SHOWN], indices.positions, strict=False)
        ],
    }  # fmt: skip


def show_epochs(store: Store, index: int, options: Options, transform: Any = None) -> dict[str, Any]:
    """Return where a record comes in each of 12 epochs from ``options.epoch``, and its crops there.

    An epoch may have several entries, as ranks that cannot share evenly repeat some samples. ``step`` is None where
    the record is in a last incomplete batch, which is left out.

    Raises:
        OptionError: An option or the state is wrong, or no record has this index.
    """
    dataset = _dataset(store, options, transform)
    sampler, batches, state = _order(dataset, options)
    whole_number("index", index, 0, len(dataset) - 1)
    entries = []
    for epoch in range(options.epoch, options.epoch + EPOCHS):
        order: Any = sampler.order(sampler.seed, epoch)
        first = int(order.inverse(np.array([index]))[0])
        for position in range(first, len(sampler) * options.world_size, len(dataset)):  # ranks repeat some
            at, rank = divmod(position, options.world_size)
            step = at // options.batch_size
            sample = _sample(dataset, SeededIndices([index], sampler.seed, epoch, range(position, position + 1)))
            place = {"epoch": epoch, "rank": rank, "step": step if step < len(batches) else None}
            entries.append({**sample, **place, "state": _state_of(state, epoch)})
    return {"seed": str(sampler.seed), "order": sampler.facts(), "epochs": entries, **_told(transform)}


def show_image(store: Store, index: int, position: int, options: Options, transform: Any = None) -> tuple[bytes, str]:
    """Return the image of a record as the network gets it at a position of an epoch, and how it is shown; see to_png.

    Raises:
        OptionError: The transform fails; this has the last line of its traceback.
    """
    dataset = _dataset(store, options, transform)
    indices = SeededIndices([index], options.seed, options.epoch, range(position, position + 1))
    try:
        return to_png(dataset.__getitems__(indices)[0]["image"])
    except DBLoaderError:
        raise
    except Exception as error:  # a user's transform raises anything
        raise OptionError(f"the transform failed: {type(error).__name__}: {error}") from error


def _told(transform: Any) -> dict[str, Any]:
    repeatable = transform is None or isinstance(transform, Decoder) or is_albumentations(transform)
    return {"transform": transform and short_repr(transform, 200), "repeatable": repeatable}


def _state_of(state: Mapping[str, Any] | None, epoch: int) -> str | None:
    """Return the state at the beginning of another epoch, as JSON."""
    return None if state is None else json.dumps({**state, "epoch": epoch, "position": 0})


def _dataset(store: Store, options: Options, transform: Any) -> StoreDataset:
    """Return the dataset that makes the samples, as create_loader does."""
    dataset = StoreDataset(store, fields=("image",))
    if transform is None:
        sides: Any = [int(side) if side.isdecimal() else side for side in options.size.split("x")]
        size = height_and_width(sides * (3 - len(sides)))
        whole_number("size", max(size), 1, _LONGEST)
        transform = default_transform(dataset, size, is_training=True)
    decoded: StoreDataset = with_transform(dataset, transform)[0]
    return decoded


def _order(dataset: StoreDataset, options: Options) -> tuple[ResumableSampler, Any, Mapping[str, Any] | None]:
    """Return the sampler at the start that is asked for, its batches, and the state that was given."""
    state = None
    if options.state:
        try:
            state = json.loads(options.state.replace("'", '"'))  # Python prints a dict with '
        except (ValueError, RecursionError) as error:
            raise OptionError(
                "the state must be JSON, such as json.dumps(loader.state_dict()) or print() writes it, "
                f"got {short_repr(options.state, 50)}: {error}"
            ) from None
    whole_number("batch_size", options.batch_size, 1, _MOST)
    whole_number("world_size", options.world_size, 1, _MOST)
    try:
        sampler = _sampler(dataset, options, state if isinstance(state, Mapping) else {})
        sampler.set_epoch(options.epoch)
        if options.state:
            checkpoint = SamplerCheckpoint(sampler, options.batch_size, drop_last=options.drop_last, dataset=dataset)
            checkpoint.load(state)
    except TypeError as error:
        raise OptionError(str(error)) from None
    batches = create_batch_sampler(
        dataset, sampler, options.batch_size, shuffle=True, distributed=False, seed=0, drop_last=options.drop_last
    )
    return sampler, batches, state


def _sampler(dataset: StoreDataset, options: Options, state: Mapping[str, Any]) -> ResumableSampler:
    ranks: dict[str, Any] = {"num_replicas": options.world_size, "rank": options.rank, "seed": options.seed}
    name = state.get("sampler", "ShuffleSampler")
    if name == "BlockShuffleSampler":
        sizes = {name: state[name] for name in ("block_size", "buffer_blocks", "lanes") if name in state}
        return BlockShuffleSampler(dataset, **sizes, **ranks)
    if name != "ShuffleSampler":
        raise OptionError(f"the state must be of a ShuffleSampler or BlockShuffleSampler, got {short_repr(name)}")
    return ShuffleSampler(dataset, **ranks)


def _sample(dataset: StoreDataset, indices: SeededIndices) -> dict[str, Any]:
    """Return what is known of one sample before it is decoded."""
    sample: dict[str, Any] = {"index": indices[0], "position": indices.positions[0]}
    try:
        record = dataset.record(indices[0])
        sample |= {"name": record.name, "label": record.label}
        check_whole(record, dataset.root)
        rows = dataset.random_numbers(indices)
        return sample | _crop(dataset, record, () if rows is None else rows[0])
    except StoreUnreachableError:
        raise
    except DBLoaderError as error:  # a damaged record is shown in its own cell
        return {**sample, "error": str(error)}


def _crop(dataset: StoreDataset, record: Record, row: Any) -> dict[str, Any]:
    """Return which part of an image the output shows.

    ``crop`` is [left, top, width, height] in pixels of the image as the Decoder has it, whose [width, height] is
    ``size``. ``shares`` are the same as shares of the thumbnail, which is upright; ``turned`` is how EXIF turns that,
    1 to 8, if the Decoder does not.
    """
    decode: Any = dataset.decode
    found: dict[str, Any] = {"crop": None, "flip": False, "size": [record.width, record.height], "turned": 1}
    if record.format != "TIFF" and not getattr(decode, "exif_transpose", False):  # Pillow turns a TIFF
        found["turned"] = shown_orientation(record.image)
    if not isinstance(decode, Decoder) or not decode.can_plan or record.image is None:
        return found
    if record.width and record.height and record.format != "TIFF" and not decode.exif_transpose:
        crop = decode.choose_crop(row, record.width, record.height)
    else:  # only the file knows which side is up
        plan = dataset.plan(record, row)
        crop, found["size"] = plan.crop, [plan.width, plan.height]
    box: list[float] = [crop.left, crop.top, crop.width, crop.height]
    if crop.resized is not None and decode.size is not None:  # the output shows a window on the resized part
        for axis in (0, 1):  # rows, then columns
            scale = box[3 - axis] / crop.resized[axis]
            first = max(crop.window[axis], 0)
            box[1 - axis] += first * scale
            box[3 - axis] = (min(crop.window[axis] + decode.size[axis], crop.resized[axis]) - first) * scale
    left, top, width, height = (part / side for part, side in zip(box, found["size"] * 2, strict=True))
    exchanged, mirrored, inverted = TURNS[found["turned"]]
    if exchanged:
        left, top, width, height = top, left, height, width
    left, top = 1 - left - width if mirrored else left, 1 - top - height if inverted else top
    return {**found, "crop": box, "flip": crop.flip, "shares": [left, top, width, height]}
