"""Writing a store from samples that are in memory already: what a dataset, a DataLoader or a generator yields."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from dbloader.errors import FieldError, OptionError
from dbloader.records import STANDARD_FIELDS, Record, encode
from dbloader.stores import create_store

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from dbloader.manifest import Manifest


def write_store(
    samples: Any,
    place: str | os.PathLike[str],
    *,
    fields: Sequence[str] = ("image", "label"),
    classes: Sequence[str] | None = None,
    image_format: str = "PNG",
    quality: int | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Writes a store of samples and gives its manifest.

    Nothing is at the place until all samples are in; an error leaves nothing new there.

    Args:
        samples: An iterable, a map-style dataset, or a torch DataLoader, whose batches are taken apart again. A sample
            is a dict of field names, a tuple or list in the order of ``fields``, a Record, or an image alone (a PIL
            image, tensor, array or the bytes of an image file). Tensors and arrays are stored as arrays of their dtype
            and shape; tensors of one number, and numpy scalars, as numbers.
        place: Place of the store.
        fields: Names of a tuple's items. ``image``, ``label`` (an int) and ``name`` (a str) have a meaning of their
            own, all others are kept beside them.
        classes: Class names in the order of their labels; default those of the dataset, if it has such.
        image_format: Pillow's name of the format in which PIL images are encoded: without loss in ``"PNG"``.
        quality: Quality of a lossy format, 1 to 100; default Pillow's.
        overwrite: Replace the store at the place, once the new one is finished.

    Raises:
        FieldError: A sample holds what a record cannot; the message says which sample and field.
        OptionError: The image format is one that Pillow cannot write.
        StoreError: The place cannot be written, or is taken.
    """
    Image.init()
    if image_format.upper() not in Image.SAVE:
        raise OptionError(
            f"image_format must be a format that Pillow writes, such as PNG or JPEG, got {image_format!r}"
        )
    options = {} if quality is None else {"quality": quality}
    with create_store(place, overwrite=overwrite) as writer:
        for number, sample in enumerate(_samples(samples)):
            try:
                record = _record(sample, fields, image_format.upper(), options)
                writer.write([encode(record)])
            except FieldError as error:
                raise FieldError(f"sample {number}: {error}") from error
        return writer.finish(classes=_classes(samples) if classes is None else classes, source={"kind": "samples"})


def _samples(source: Any) -> Iterator[Any]:
    if _is_torch(source, "torch.utils.data", "DataLoader"):
        if source.batch_size is None and source.batch_sampler is None:
            yield from source
        else:
            for batch in source:
                yield from _unbatched(batch)
    elif hasattr(source, "__iter__"):
        yield from source
    else:
        # A map-style dataset: Python would iterate it until an IndexError, which not every dataset raises.
        yield from (source[index] for index in range(len(source)))


def _unbatched(batch: Any) -> Iterator[Any]:
    """Takes apart what torch's default_collate put together."""
    if isinstance(batch, Mapping):
        for values in _zipped(list(batch.values())):
            yield dict(zip(batch, values, strict=True))
    elif isinstance(batch, (tuple, list)):
        yield from _zipped(list(batch))
    else:
        yield from batch


def _zipped(columns: list[Any]) -> Iterator[tuple[Any, ...]]:
    parts = [list(_unbatched(c)) if isinstance(c, Mapping) or _is_nested(c) else list(c) for c in columns]
    if len({len(part) for part in parts}) > 1:
        raise FieldError(f"the fields of a batch have different lengths: {[len(part) for part in parts]}")
    return zip(*parts, strict=True)


def _is_nested(value: Any) -> bool:
    """Tells a collated tuple of several fields from a collated list of strings."""
    return isinstance(value, (tuple, list)) and bool(value) and not isinstance(value[0], (str, bytes))


def _record(sample: Any, fields: Sequence[str], image_format: str, options: Mapping[str, Any]) -> Record:
    if isinstance(sample, Record):
        return sample
    if isinstance(sample, Mapping):
        values = dict(sample)
    elif isinstance(sample, (tuple, list)):
        if len(sample) > len(fields):
            raise FieldError(
                f"it has {len(sample)} items, and fields names {len(fields)}: name them all, "
                f"such as fields=({', '.join(map(repr, [*fields, 'caption']))})",
            )
        values = dict(zip(fields, sample))  # noqa: B905 - a sample may lack the last ones
    else:
        values = {"image": sample}
    values = {key: _value(value) for key, value in values.items()}
    record = Record(fields={key: value for key, value in values.items() if key not in STANDARD_FIELDS})
    for key in STANDARD_FIELDS:
        if key in values:
            setattr(record, key, values[key])
    image = values.get("image")
    if isinstance(image, Image.Image):
        record.image = _encoded(image, image_format, options)
        record.width, record.height, record.format = image.width, image.height, image_format
    for key, value in record.fields.items():
        if isinstance(value, Image.Image):
            record.fields[key] = _encoded(value, image_format, options)
    return record


def _value(value: Any) -> Any:
    """Gives arrays for tensors, and numbers for tensors and arrays of no dimensions."""
    if _is_torch(value, "torch", "Tensor"):
        try:
            value = value.detach().cpu().numpy()
        except TypeError as error:
            raise FieldError(
                f"a tensor of {value.dtype} has no numpy equal: convert it, such as by .float()"
            ) from error
    if isinstance(value, np.ndarray) and not value.shape and not value.dtype.hasobject:
        return value.item()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(item) for item in value]
    return value


def _encoded(image: Image.Image, image_format: str, options: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    kept = {key: image.info[key] for key in ("icc_profile", "exif") if image.info.get(key)}
    try:
        image.save(file, image_format, **{**kept, **options})
    except (OSError, ValueError) as error:
        raise FieldError(f"its image of mode {image.mode} cannot be written as {image_format}: {error}") from error
    return file.getvalue()


def _classes(samples: Any) -> Sequence[str]:
    dataset = samples.dataset if _is_torch(samples, "torch.utils.data", "DataLoader") else samples
    classes = getattr(dataset, "classes", None)
    is_names = isinstance(classes, Sequence) and all(isinstance(name, str) for name in classes)
    return classes if is_names and not isinstance(classes, str) else ()  # type: ignore[return-value]


def _is_torch(value: Any, module: str, name: str) -> bool:
    """Tells whether a value is of a class of torch, without importing torch: if it is, torch is there."""
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], name))
