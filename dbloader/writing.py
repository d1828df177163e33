"""Writing a store from samples that are in memory already: what a dataset, a DataLoader or a generator yields."""

from __future__ import annotations

import copy
import dataclasses
import io
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from dbloader.errors import DamagedImageError, DBLoaderError, FieldError, ImageError, NotAnImageError, OptionError
from dbloader.images import facts
from dbloader.records import STANDARD_FIELDS, Record, encode
from dbloader.stores import Store, create_store

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from dbloader.manifest import Manifest

# Those in which Pillow has a ``quality``; all others would leave the option unheard.
_WITH_QUALITY = ("AVIF", "JPEG", "WEBP")


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

    Nothing is at the place until all samples are in; an error leaves nothing new there. No samples make an empty
    store.

    Of a DataLoader, the samples are taken in its order, made by its workers, before they are collated: what a batch
    is made of is stored, not the batch, so that samples of different sizes fit too. Its ``collate_fn`` is not called
    (but with ``batch_size=None``, where it makes samples); a DataLoader over the store with the same one gives the
    same batches.

    Args:
        samples: An iterable, a map-style dataset, a torch DataLoader (or a PrefetchLoader of one) or a Store. A sample
            is a dict of field names, a named tuple or dataclass with fields of those names, a tuple or list in the
            order of ``fields``, a Record, or an image alone (a PIL image, tensor, array or the bytes of an image
            file). Tensors and arrays are stored as arrays of their dtype and shape; those of one number, and numpy
            scalars, as the int, float or bool that has their dtype, if one has.
        place: Place of the store.
        fields: Names of a tuple's items; a tuple may lack the last ones. ``image``, ``label`` (an int) and ``name`` (a
            str) have a meaning of their own, as have ``width``, ``height``, ``format``, ``damaged`` and
            ``resized_from``; all others are kept beside them.
        classes: Class names in the order of their labels, () for labels without names; default those of the dataset,
            if it has such.
        image_format: Pillow's name of the format in which the field ``image`` is encoded if it is a PIL image: without
            loss in ``"PNG"``. PIL images in other fields, such as masks, are always encoded in PNG.
        quality: Quality in JPEG, WebP or AVIF, 1 to 100; default Pillow's.
        overwrite: Replace the store at the place, once the new one is finished.

    Raises:
        FieldError: A sample holds what a record cannot, or a label that is none of the classes; the message says which
            sample and field.
        DamagedImageError: A PIL image does not decode.
        OptionError: An option is out of its range, or the samples are not of a kind that can be iterated.
        StoreError: The place cannot be written, or is taken.
    """
    form = _Form(_checked_fields(fields), _checked_format(image_format), _checked_quality(quality, image_format))
    if isinstance(classes, str):
        raise OptionError(f"classes must be several names, such as ({classes!r},), got the one str {classes!r}")
    class_names = _classes(samples) if classes is None else tuple(classes)
    with create_store(place, overwrite=overwrite) as writer, closing(_records(samples, form)) as records:
        for number, record in enumerate(records):
            try:
                writer.write([encode(_checked(record, class_names))])
            except (FieldError, ImageError) as error:
                raise type(error)(f"sample {number}: {error}") from error
        return writer.finish(classes=class_names, source={"kind": "samples"})


@dataclasses.dataclass(frozen=True)
class _Batch:
    """The records of a DataLoader's batch, and errors in the place of those that could not be made."""

    records: list[Record | DBLoaderError]


@dataclasses.dataclass(frozen=True)
class _Form:
    """How a sample becomes a record."""

    fields: tuple[str, ...]
    image_format: str
    options: dict[str, Any]

    def __call__(self, samples: Iterable[Any]) -> _Batch:
        """Stands in for a DataLoader's ``collate_fn``: images are encoded in the workers.

        What comes from there holds no tensors: torch would keep a file open for each of them.
        """
        return _Batch([self.record_or_error(sample) for sample in samples])

    def record_or_error(self, sample: Any) -> Record | DBLoaderError:
        """Gives the record, or the error as a value: raised in a worker, it would come with that one's traceback."""
        try:
            return self.record(sample)
        except (FieldError, ImageError) as error:
            return error

    def record(self, sample: Any) -> Record:
        if isinstance(sample, Record):
            return sample
        named = {key: self._value(key, value) for key, value in self._named(sample).items()}
        standard = {key: named.pop(key) for key in STANDARD_FIELDS if key in named}
        record = Record(**standard, fields=named)
        record.label = _label(record.label)
        if isinstance(record.image, bytes) and (record.width, record.height, record.format) == (None, None, None):
            with suppress(NotAnImageError):  # bytes that a ``decode`` of the user's understands
                record.format, record.width, record.height = facts(record.image)
        return record

    def _named(self, sample: Any) -> Mapping[Any, Any]:
        if isinstance(sample, Mapping):
            return sample
        if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
            return {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
        if isinstance(sample, (tuple, list)):
            names = getattr(sample, "_fields", self.fields)
            if len(sample) > len(names):
                raise FieldError(
                    f"it has {len(sample)} items, and fields names {len(names)}: name them all, "
                    f"such as fields=({', '.join(map(repr, [*names, 'caption']))})",
                )
            return dict(zip(names, sample))  # noqa: B905 - a sample may lack the last ones
        return {"image": sample}

    def _value(self, key: str, value: Any) -> Any:
        """Gives what a record can hold for tensors, scalars, PIL images, and lists and dicts of them."""
        if _is_of(value, "torch", "Tensor"):
            value = _array(key, value)
        if isinstance(value, (np.ndarray, np.generic)):
            return _number(value)
        if isinstance(value, Image.Image):
            return _encoded(key, value, *((self.image_format, self.options) if key == "image" else ("PNG", {})))
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, Mapping):
            return {name: self._value(f"{key}.{name}", item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._value(f"{key}[{position}]", item) for position, item in enumerate(value)]
        return value


def _records(samples: Any, form: _Form) -> Generator[Record | DBLoaderError, None, None]:
    while _is_of(samples, "dbloader.prefetch", "PrefetchLoader"):
        samples = samples._loader
    if _is_of(samples, "torch.utils.data", "DataLoader"):
        yield from _loaded(samples, form)
    else:
        for sample in _each(samples):
            yield form.record_or_error(sample)


def _loaded(loader: Any, form: _Form) -> Iterator[Record | DBLoaderError]:
    kind = type(loader).__name__
    is_batched = loader.batch_sampler is not None
    loader = copy.copy(loader)
    loader._iterator = None  # persistent workers are the original's, and have its collate_fn
    if is_batched:
        loader.collate_fn = form
    iterator = iter(loader)
    try:
        for item in iterator:
            if not is_batched:
                yield form.record_or_error(item)
            elif isinstance(item, _Batch):
                yield from item.records
            else:
                raise OptionError(
                    f"this {kind} gives batches that its collate_fn has not made, which cannot be taken apart: "
                    "give its dataset, or a torch DataLoader",
                )
    finally:
        if hasattr(iterator, "_shutdown_workers"):
            # An iterator that raised lives on, with its workers, in a cycle with its error.
            iterator._shutdown_workers()


def _each(samples: Any) -> Iterator[Any]:
    if hasattr(samples, "__iter__") and not isinstance(samples, (str, bytes, Mapping)):
        yield from samples
    elif hasattr(samples, "__getitem__") and hasattr(samples, "__len__") and not hasattr(samples, "__iter__"):
        # A map-style dataset: Python would iterate it until an IndexError, which not every dataset raises.
        for index in range(len(samples)):
            yield samples[index]
    else:
        raise OptionError(
            f"samples must be an iterable of samples, a dataset or a DataLoader, got a {type(samples).__name__}: "
            "put a single sample into a list, and give the path of a folder to convert()",
        )


def _checked(record: Record | DBLoaderError, classes: Sequence[str]) -> Record:
    if isinstance(record, DBLoaderError):
        raise record
    if classes and record.label is not None and not 0 <= record.label < len(classes):
        # finish() would say so too, but only after all samples.
        raise FieldError(
            f"label {record.label} is not one of the {len(classes)} classes (0 to {len(classes) - 1}): "
            "give the names of all, or classes=() to store labels without names",
        )
    return record


def _label(value: Any) -> int | None:
    if isinstance(value, np.ndarray) and not value.shape and value.dtype.kind in "iu":
        return int(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise FieldError(f"field 'label' must be an int, got {value!r:.100}: put it into a field of its own, say 'target'")


def _array(key: str, tensor: Any) -> np.ndarray[Any, Any]:
    try:
        return tensor.numpy(force=True)  # type: ignore[no-any-return]
    except (TypeError, RuntimeError) as error:
        raise FieldError(
            f"field {key!r} is a tensor of {tensor.dtype} ({tensor.layout}, on {tensor.device}), which numpy has no "
            f"equal of ({error}): convert it, such as by .float()",
        ) from error


def _number(value: np.ndarray[Any, Any] | np.generic) -> Any:
    """Gives the Python object for one number or text, if that has its dtype; else an array."""
    array = np.asarray(value)
    if array.shape or array.dtype.hasobject:
        return array
    item = array.item()
    return item if np.asarray(item).dtype == array.dtype and not isinstance(item, np.generic) else array


def _encoded(key: str, image: Image.Image, image_format: str, options: Mapping[str, Any]) -> bytes:
    try:
        image.load()
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise DamagedImageError(f"field {key!r} is an image that does not decode: {error}") from error
    file = io.BytesIO()
    kept = {name: image.info[name] for name in ("icc_profile", "exif") if image.info.get(name)}
    try:
        image.save(file, image_format, **{**kept, **options})
        with Image.open(file) as written:
            lost = _lost(image, written)
    except Exception as error:  # so do those that write
        raise _unwritable(key, image, image_format, str(error)) from error
    if lost:
        raise _unwritable(key, image, image_format, f"that loses its {lost}")
    return file.getvalue()


def _lost(image: Image.Image, written: Image.Image) -> str:
    """Tells what a format has dropped without a word: BMP transparency, WebP the high bits, ICO the size."""
    if image.has_transparency_data and not written.has_transparency_data:
        return "transparency"
    if image.mode.startswith(("I", "F")) and not written.mode.startswith(("I", "F")):
        return "depth of more than 8 bits"
    return "" if image.size == written.size else "size"


def _unwritable(key: str, image: Image.Image, image_format: str, reason: str) -> FieldError:
    remedy = "choose image_format='TIFF', which keeps most modes, or " if key == "image" else ""
    return FieldError(
        f"field {key!r} is an image of mode {image.mode}, which cannot be written as {image_format} ({reason}): "
        f"{remedy}convert it, such as by .convert('RGB') or numpy.asarray()",
    )


def _checked_fields(fields: Sequence[str]) -> tuple[str, ...]:
    if isinstance(fields, str):
        raise OptionError(f"fields must be several names, such as ({fields!r},), got the one str {fields!r}")
    if len(set(fields)) < len(fields):
        raise OptionError(f"fields must be different names, got {', '.join(map(repr, fields))}")
    return tuple(fields)


def _checked_format(image_format: str) -> str:
    Image.init()
    name = image_format.upper()
    if name not in Image.SAVE or name not in Image.OPEN:
        raise OptionError(
            f"image_format must be one that Pillow writes and reads, such as PNG or JPEG, got {image_format!r}",
        )
    return name


def _checked_quality(quality: object, image_format: str) -> dict[str, Any]:
    if quality is None:
        return {}
    if not isinstance(quality, int) or isinstance(quality, bool) or not 1 <= quality <= 100:
        raise OptionError(f"quality must be from 1 to 100, got {quality!r}")
    if image_format.upper() not in _WITH_QUALITY:
        raise OptionError(f"quality is for the formats {', '.join(_WITH_QUALITY)}: give image_format='JPEG' too")
    return {"quality": quality}


def _classes(samples: Any) -> tuple[str, ...]:
    """Gives the class names of a store, a dataset, or the dataset in a DataLoader or Subset."""
    if isinstance(samples, Store):
        return samples.manifest.classes
    names = getattr(samples, "classes", None)
    if isinstance(names, (tuple, list)) and names and all(isinstance(name, str) for name in names):
        return tuple(names)
    if _is_of(samples, "torch.utils.data", "ConcatDataset"):
        parts = {_classes(part) for part in samples.datasets}
        return parts.pop() if len(parts) == 1 else ()
    inner = getattr(samples, "dataset", None)
    return () if inner is None else _classes(inner)


def _is_of(value: Any, module: str, name: str) -> bool:
    """Tells whether a value is of a class, without importing its module: if it is, the module is there."""
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], name))
