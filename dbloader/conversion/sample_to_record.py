"""Make a record of a sample of a dataset, a DataLoader or a generator."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import ExifTags, Image

from dbloader._describe import short_repr
from dbloader._options import whole_number
from dbloader.conversion.stored_records import is_torch
from dbloader.errors import FieldError, ImageError, OptionError
from dbloader.images.info import find_facts
from dbloader.images.pillow import FORMATS, open_pillow, translate_errors, value_depth
from dbloader.records.record import STANDARD_FIELDS, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.errors import DBLoaderError

# Pillow ignores ``quality`` for all other formats.
_WITH_QUALITY = ("AVIF", "JPEG", "WEBP")


@dataclasses.dataclass(frozen=True)
class RecordBatch:
    """The records of a DataLoader's batch, with an error in place of each record that could not be made."""

    records: list[Record | DBLoaderError]


@dataclasses.dataclass(frozen=True)
class SampleEncoder:
    """Makes records of samples. A DataLoader with workers pickles it, as its ``collate_fn``."""

    fields: tuple[str, ...]  # names of a tuple's items
    image_format: str  # format of PIL images in the field ``image``
    options: dict[str, Any]  # Pillow's options for that format

    @classmethod
    def of(cls, fields: Sequence[str], image_format: str, quality: int | None) -> SampleEncoder:
        """Return an encoder for these options of ``write_store``; TypeError or OptionError if one is wrong."""
        names = checked_names("fields", fields, "('image', 'label')")
        if len(set(names)) < len(names):
            raise OptionError(f"fields must be different names, got {short_repr(names)}")
        if not isinstance(image_format, str):
            raise OptionError(f"image_format must be Pillow's name of a format, such as 'PNG', got {image_format!r}")
        Image.init()
        known = [name for name in FORMATS if name in Image.SAVE]
        name = image_format.upper()
        if name not in known or name not in Image.OPEN:
            raise OptionError(
                f"image_format must be one of {', '.join(known)}, such as PNG or JPEG, got {image_format!r}"
            )
        quality = whole_number("quality", quality, 1, 100, none=True)
        if quality is not None and name not in _WITH_QUALITY:
            raise OptionError(f"quality is for the formats {', '.join(_WITH_QUALITY)}: give image_format='JPEG' too")
        return cls(names, name, {} if quality is None else {"quality": quality})

    def __call__(self, samples: Iterable[Any]) -> RecordBatch:
        """Return the records of a batch, without tensors: torch would keep a file open for each tensor."""
        return RecordBatch([self.record_or_error(sample) for sample in samples])

    def record_or_error(self, sample: Any) -> Record | DBLoaderError:
        """Return the record, or the error: raised in a worker, its message would contain the worker's traceback."""
        try:
            return self.record(sample)
        except (FieldError, ImageError) as error:
            return error

    def record(self, sample: Any) -> Record:
        """Return the record of a sample; FieldError if a record cannot hold a value."""
        if isinstance(sample, Record):
            return sample
        named = {key: self._value(key, value) for key, value in self._named(sample).items()}
        standard = {key: named.pop(key) for key in STANDARD_FIELDS if key in named}
        record = Record(**standard, fields=named)
        record.label = _label(record.label)
        _check_channels(record.image)
        described = (record.width, record.height, record.format) != (None, None, None)
        # Without facts, only the user's own ``decode`` reads the image.
        if isinstance(record.image, bytes) and not described and (facts := find_facts(record.image)):
            record.format, record.width, record.height = facts[:3]
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
                    f"such as fields=({', '.join(map(repr, [*names, 'caption']))})"
                )
            return dict(zip(names, sample))  # noqa: B905 - a sample may lack the last ones
        return {"image": sample}

    def _value(self, key: str, value: Any) -> Any:
        """Convert tensors, scalars, PIL images, and lists and dicts of these, to values that a record can hold."""
        if is_torch(value, "torch", "Tensor"):
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


def _label(value: Any) -> Any:
    if isinstance(value, np.ndarray) and not value.shape and value.dtype.kind in "iu":
        return int(value)
    if value is None or (isinstance(value, (int, str)) and not isinstance(value, bool)):
        return value  # write_store looks up the names of classes
    raise FieldError(
        f"field 'label' must be an int, or the name of a class, got {short_repr(value)}: put it into a field of its "
        "own, say 'target'"
    )


def _check_channels(image: Any) -> None:
    """Raise FieldError for pixels with channels first, which no decoder takes."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3:
        return
    if image.shape[0] == 3 and image.shape[2] != 3:
        raise FieldError(
            f"field 'image' is an array of the shape {image.shape}, with its channels first, and decoders take "
            "(height, width, 3): give image.transpose(1, 2, 0), or of a tensor image.permute(1, 2, 0)"
        )


def _array(key: str, tensor: Any) -> np.ndarray[Any, Any]:
    try:
        return tensor.numpy(force=True)  # type: ignore[no-any-return]
    except (TypeError, RuntimeError) as error:
        raise FieldError(
            f"field {key!r} is a tensor of {tensor.dtype} ({tensor.layout}, on {tensor.device}), which numpy has no "
            f"equal of ({error}): convert it, such as by .float()"
        ) from error


def _number(value: np.ndarray[Any, Any] | np.generic) -> Any:
    """Return a single value as an int, float, bool or str of the same dtype if there is one; else an array."""
    array = np.asarray(value)
    if array.shape or array.dtype.hasobject:
        return array
    item = array.item()
    return item if np.asarray(item).dtype == array.dtype and not isinstance(item, np.generic) else array


def _encoded(key: str, image: Image.Image, image_format: str, options: Mapping[str, Any]) -> bytes:
    with translate_errors(f"field {key!r} is an image that does not decode"):
        image.load()
    file = io.BytesIO()
    kept = {name: image.info[name] for name in ("icc_profile", "exif") if image.info.get(name)}
    if image_format == "TIFF" and "exif" in kept:
        kept["exif"] = _without_orientation(kept["exif"])
    try:
        image.save(file, image_format, **{**kept, **options})
        with open_pillow(file) as written:
            lost = _lost(image, written)
    except Exception as error:  # a Pillow plugin raises whatever its encoding meets
        raise _unwritable(key, image, image_format, str(error)) from error
    if lost:
        raise _unwritable(key, image, image_format, f"that loses its {lost}")
    return file.getvalue()


def _without_orientation(exif: bytes) -> bytes:
    """Return EXIF without orientation, for a TIFF. Pillow applies the orientation of a TIFF when it opens the file."""
    parsed = Image.Exif()
    parsed.load(exif)
    if parsed.pop(ExifTags.Base.Orientation, None) is None:
        return exif
    return parsed.tobytes()


def _lost(image: Image.Image, written: Image.Image) -> str:
    """Return the property that a format has silently changed: BMP transparency, WebP high bits, ICO size; or ""."""
    if image.has_transparency_data and not written.has_transparency_data:
        return "transparency"
    if image.mode.startswith(("I", "F")) and not written.mode.startswith(("I", "F")):
        return "depth of more than 8 bits"
    if image.mode == "I" and value_depth(written) == "16-bit":
        values = np.asarray(image)
        if values.min() < 0 or values.max() >= 2**16:
            return "values outside of 0 to 65,535"
    return "" if image.size == written.size else "size"


def _unwritable(key: str, image: Image.Image, image_format: str, reason: str) -> FieldError:
    remedy = "choose image_format='TIFF', which keeps most modes, or " if key == "image" else ""
    return FieldError(
        f"field {key!r} is an image of mode {image.mode}, which cannot be written as {image_format} ({reason}): "
        f"{remedy}convert it, such as by .convert('RGB') or numpy.asarray()"
    )


def checked_names(option: str, names: object, example: str) -> tuple[str, ...]:
    """Return an option with several names as a tuple; OptionError for anything else, such as a single str."""
    if isinstance(names, Iterable) and not isinstance(names, str):
        names = tuple(names)
        if all(isinstance(name, str) for name in names):
            return names
    raise OptionError(f"{option} must be names, such as {example}, got {short_repr(names)}")
