"""Compute the training view: the batch of any step, the crop of each image, and the input of the neural network.

The order, the random numbers, the crops and the pixels come from the code of ``create_loader``, so the view shows what
training gets. This module imports torch.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from PIL import Image

from dbloader._describe import short_repr
from dbloader._options import whole_number
from dbloader.datasets.base import CompositeDataset, check_whole
from dbloader.datasets.fields import image_and_label
from dbloader.datasets.store import StoreDataset
from dbloader.datasets.transforms import is_albumentations
from dbloader.decoding.decoder import Decoder
from dbloader.errors import DBLoaderError, OptionError, StoreUnreachableError
from dbloader.ext.images.preview import shown_orientation
from dbloader.ext.sampling.blocks import BlockShuffleSampler
from dbloader.images.pillow import TURNS
from dbloader.loading.checkpoint import SamplerCheckpoint
from dbloader.loading.create import create_batch_sampler, default_transform, height_and_width, with_transform
from dbloader.sampling.rng import SeededIndices, seed_like
from dbloader.sampling.shuffle import ShuffleSampler

if TYPE_CHECKING:
    from dbloader.records.record import Record
    from dbloader.sampling.base import ResumableSampler
    from dbloader.stores.base import Store

_SHOWN = 256  # number of samples shown of a batch
_MOST = 65_536  # largest batch size, and largest number of ranks
_LONGEST = 4_096  # largest side in pixels; a larger image could need gigabytes of memory
_LONGEST_TEXT = 20  # characters of a size, such as "224" or "224x320"


class Options(NamedTuple):
    """Settings that determine the shown batch, with the names and defaults of `create_loader`."""

    seed: int = 0
    epoch: int = 0
    batch_size: int = 32
    world_size: int = 1
    rank: int = 0
    step: int = 0
    size: str = "224"  # height and width in pixels: "224", or "192x256"
    drop_last: bool = True
    # A loader's state_dict() as JSON, which sets the order, seed and epoch. Step 0 is the first batch after this state.
    state: str = ""


def show_batch(store: Store | CompositeDataset, options: Options, transform: Any = None) -> dict[str, Any]:
    """Return facts about the batch that one rank gets at a step, with the crops of the first 256 samples.

    Raises:
        OptionError: An option or the state is wrong, or the epoch has no such step.
    """
    dataset = _dataset(store, options, transform)
    sampler, batches, state = _order(dataset, options)
    since = sampler.state_after()
    whole, rest = divmod(len(sampler.positions(since)), options.batch_size)
    steps = whole + (rest > 0 and not options.drop_last)
    if not steps:
        raise OptionError(f"the state is at the end of epoch {sampler.epoch}: the epoch has no batch left")
    whole_number("step", options.step, 0, steps - 1)
    sampler.load_state_dict(sampler.state_after(options.step * options.batch_size, since=since))
    indices: SeededIndices = next(iter(batches))
    return {
        "seed": str(indices.seed), "epoch": indices.epoch, "step": options.step, "steps": steps, "indices": [*indices],
        "order": sampler.facts(),
        # The state at the start of the next epoch, as JSON.
        "next_epoch": state and json.dumps({**state, "epoch": indices.epoch + 1, "position": 0}),
        "transform": None if transform is None else short_repr(transform, 200),  # bool(nn.Sequential()) is False
        # Whether the random numbers depend only on seed, epoch and position.
        "repeatable": transform is None or isinstance(transform, Decoder) or is_albumentations(transform),
        "samples": [
            _sample(dataset, SeededIndices([index], indices.seed, indices.epoch, range(position, position + 1)))
            for index, position in zip(indices[:_SHOWN], indices.positions, strict=False)
        ],
    }  # fmt: skip


def show_image(
    store: Store | CompositeDataset, index: int, position: int, options: Options, transform: Any = None
) -> tuple[bytes, str]:
    """Return the image that the neural network gets, as PNG, and a note on how its values are shown (see `to_png`).

    ``position`` is the position of the record in the epoch. Without a transform, use the default of `create_loader`.

    Raises:
        OptionError: The transform fails, or returns no image.
    """
    dataset = _dataset(store, options, transform)
    indices = SeededIndices([index], options.seed, options.epoch, range(position, position + 1))
    try:
        sample = dataset.__getitems__(indices)[0]
        named = image_and_label(dataset)
        return to_png(sample[named["image"]] if isinstance(sample, dict) else sample[0])
    except DBLoaderError:
        raise
    except Exception as error:  # the transform is the user's code
        raise OptionError(f"the transform failed: {type(error).__name__}: {error}") from error


def _dataset(store: Store | CompositeDataset, options: Options, transform: Any) -> Any:
    """Return the dataset that `create_loader` would make."""
    dataset: Any = store if isinstance(store, CompositeDataset) else StoreDataset(store, fields=("image",))
    missing = transform is None  # then only datasets without a transform get the default transform
    if missing:
        if len(options.size) > _LONGEST_TEXT:  # int() raises an error for thousands of digits
            raise OptionError(f"size must be from 1 to {_LONGEST}, got {options.size[:_LONGEST_TEXT]}…")
        sides: Any = [int(side) if side.isdecimal() else side for side in options.size.split("x")]
        size = height_and_width(sides * (3 - len(sides)))
        whole_number("size", max(size), 1, _LONGEST)
        transform = default_transform(dataset, size, is_training=True)
    return with_transform(dataset, transform, only_missing=missing)[0]


def _order(dataset: Any, options: Options) -> tuple[ResumableSampler, Any, Mapping[str, Any] | None]:
    """Return (sampler, batch sampler, state or None). The sampler begins at the epoch or state in the options."""
    state = None
    if options.state:
        try:
            state = json.loads(options.state.replace("'", '"'))  # print() writes a dict with single quotes
        except (ValueError, RecursionError) as error:
            raise OptionError(
                "the state must be the output of print(loader.state_dict()), or JSON, "
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


def _sampler(dataset: Any, options: Options, state: Mapping[str, Any]) -> ResumableSampler:
    ranks: dict[str, Any] = {"num_replicas": options.world_size, "rank": options.rank, "seed": options.seed}
    if isinstance(dataset, CompositeDataset):
        return dataset.sampler(**ranks)
    name = state.get("sampler", "ShuffleSampler")
    if name == "BlockShuffleSampler":
        names = ("block_size", "buffer_blocks", "lanes", "stick_to_shard")
        sizes = {name: state[name] for name in names if name in state}
        return BlockShuffleSampler(dataset, **sizes, **ranks)
    if name != "ShuffleSampler":
        raise OptionError(f"the state must be of a ShuffleSampler or BlockShuffleSampler, got {short_repr(name)}")
    return ShuffleSampler(dataset, **ranks)


def _sample(dataset: Any, indices: SeededIndices) -> dict[str, Any]:
    """Return the facts and the crop of one sample, without decoding the image.

    In a mixture, ``store`` is the number of the sample's store. ``index`` and ``label`` are the index and label in this
    store. ``seen`` is the index in the mixture.
    """
    if isinstance(dataset, CompositeDataset):
        part, own, source = dataset.origin(indices[0])
        found = _sample(part, cast("SeededIndices", seed_like(indices, [own])))
        number, index = dataset.datasets.index(part), part.locate([own])[1][0]
        return {**found, "index": index, "seen": indices[0], "store": number, "source": source}
    sample: dict[str, Any] = {"index": indices[0], "position": int(indices.positions[0])}
    try:
        record = dataset.record(indices[0])
        sample |= {"name": record.name, "label": record.label}
        check_whole(record, dataset.root)
        rows = dataset.random_numbers(indices)
        return sample | _crop(dataset, record, () if rows is None else rows[0])
    except StoreUnreachableError:
        raise
    except DBLoaderError as error:  # the page shows the error in place of this sample
        return {**sample, "error": str(error)}


def _crop(dataset: StoreDataset, record: Record, row: Any) -> dict[str, Any]:
    """Return which part of an image the output shows, and whether the output is mirrored.

    ``crop`` is [left, top, width, height] in pixels of the decoded image. ``size`` is the [width, height] of the
    decoded image. ``flip`` is whether the output is mirrored. ``shares`` is the crop as fractions (0 to 1) of the
    thumbnail's width and height. ``turned`` is the EXIF orientation (1 to 8) if the transform ignores it but the
    thumbnail does not; otherwise 1. If there is no image or no Decoder, ``crop`` is None and ``shares`` is missing.
    """
    decode: Any = dataset.decode
    found: dict[str, Any] = {"crop": None, "flip": False, "size": [record.width, record.height], "turned": 1}
    if not getattr(decode, "exif_transpose", False):
        found["turned"] = shown_orientation(record.image)
    if not isinstance(decode, Decoder) or not decode.can_plan or record.image is None:
        return found
    if record.width and record.height and record.format != "TIFF" and not decode.exif_transpose:
        crop = decode.choose_crop(row, record.width, record.height)
    else:  # the record may not contain the size of the decoded image, so read the file
        plan = dataset.plan(record, row)
        crop, found["size"] = plan.crop, [plan.width, plan.height]
    box: list[float] = [crop.left, crop.top, crop.width, crop.height]
    if crop.resized is not None and decode.size is not None:  # the output is a part of the resized crop
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


def to_png(value: Any) -> tuple[bytes, str]:
    """Return (an image as PNG, a note on how its values are shown). The note is "" for unchanged values.

    uint8 values are shown unchanged. Floats from 0 to 1 are shown from black to white. Other values are shown from
    black (the least value) to white (the greatest value).

    ``value`` is a PIL image, a tensor or an array, or a list of images to show side by side. A tensor has the shape
    (height, width) or (channels, height, width). An array has (height, width) or (height, width, channels).

    Raises:
        OptionError: The value is not an image.
    """
    notes: dict[str, None] = {}
    pictures = [_picture(one, notes) for one in (value if isinstance(value, (list, tuple)) and value else [value])]
    picture = pictures[0]
    if len(pictures) > 1:
        lefts = np.cumsum([0, *(one.width for one in pictures)]).tolist()
        picture = Image.new("RGB", (lefts[-1], max(one.height for one in pictures)))
        for one, left in zip(pictures, lefts, strict=False):
            picture.paste(one, (left, 0))
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    return file.getvalue(), "; ".join(notes)


def _picture(value: Any, notes: dict[str, None]) -> Image.Image:
    """Return an image of the mode L, RGB or RGBA. Add a note to ``notes`` if the values change."""
    if isinstance(value, Image.Image):
        if not value.mode.startswith(("F", "I")):
            return value if value.mode in ("L", "RGB", "RGBA") else value.convert("RGB")
        value = np.asarray(value)
    elif hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu()
        value = np.asarray(value.float() if value.is_floating_point() else value)  # NumPy has no bfloat16
        value = value.transpose(1, 2, 0) if value.ndim == 3 else value
    drawn = isinstance(value, np.ndarray) and value.ndim in (2, 3) and value.size and value.dtype.kind in "buif"
    if not drawn:
        kind = f"{value.dtype} of shape {value.shape}" if hasattr(value, "shape") else short_repr(value, 50)
        raise OptionError(f"the page shows only images (PIL, tensor or array), but the transform returned {kind}")
    if value.ndim == 3 and value.shape[2] not in (3, 4):
        if value.shape[2] != 1:
            notes[f"only {'channels 1 to 3' if value.shape[2] > 4 else 'channel 1'} of {value.shape[2]}"] = None
        value = value[..., :3] if value.shape[2] > 4 else value[..., 0]
    if value.dtype != np.uint8:
        finite = np.isfinite(value)
        numbers = np.where(finite, value, 0).astype(np.float64)
        low, high = float(numbers.min()), float(numbers.max())
        if value.dtype.kind in "bf" and 0 <= low <= high <= 1:
            low, high = 0.0, 1.0
        notes[f"{low:.4g} to {high:.4g} shown as black to white"] = None
        if not finite.all():
            notes[f"{value.size - finite.sum()} values are not finite, shown as 0"] = None
        value = np.rint((numbers - low) * (255 / ((high - low) or 1))).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(value))
