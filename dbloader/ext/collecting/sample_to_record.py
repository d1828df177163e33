"""Make a record from a sample of a dataset, a DataLoader or a generator."""

from __future__ import annotations

import dataclasses
import io
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import ExifTags, Image

from dbloader._describe import counted, short_repr
from dbloader._options import checked_names, whole_number
from dbloader.errors import FieldError, ImageError, OptionError
from dbloader.ext.collecting.encoded_files import is_file, read_file
from dbloader.ext.collecting.sample_targets import read_target
from dbloader.ext.collecting.stored_records import is_loaded
from dbloader.ext.sources.boxes import fit_boxes
from dbloader.ext.sources.labels import IMAGE_NAMES
from dbloader.images.info import find_facts
from dbloader.images.pillow import FORMATS, open_pillow, translate_errors, value_depth
from dbloader.records.record import STANDARD_FIELDS, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dbloader.errors import DBLoaderError
    from dbloader.ext.collecting.sample_targets import Target

# Formats with an option ``quality``. Pillow ignores this option for all other formats.
_WITH_QUALITY = ("AVIF", "JPEG", "WEBP")
# Formats of photographs. As a PNG, a photograph has about three times the bytes.
_PHOTOS = ("AVIF", "HEIF", "JPEG", "MPO", "WEBP")
_BYTES = (bytes, bytearray, memoryview)
_LARGE = 2**16  # a PIL image of unknown origin is probably a photograph if its PNG has at least this many bytes


# (record, the sample's field with the image, target), or the error that prevented the record. Without an image, the
# field is None. A record that is copied from a store has the target None.
Made: TypeAlias = "tuple[Record, str | None, Target | None] | DBLoaderError"


@dataclasses.dataclass(frozen=True)
class RecordBatch:
    """The records of a DataLoader's batch."""

    records: list[Made]


@dataclasses.dataclass(frozen=True)
class SampleEncoder:
    """Makes records from samples. A SampleEncoder is the ``collate_fn`` of workers, so it must be picklable."""

    fields: tuple[str, ...]  # field names for the items of a tuple
    image_format: str  # format for encoding a PIL image in the field ``image``
    options: dict[str, Any]  # Pillow's options for ``image_format``
    warns: bool = True  # whether to warn about photographs that become PNGs; False for a format that the user gives
    needs_image: bool = True  # whether to look for an image in other fields if a sample has no ``image``
    files: tuple[str, ...] = ()  # extra fields with image files
    columns: dict[str, str] = dataclasses.field(default_factory=dict)  # {renamed column: field}, see with_files
    classes: tuple[str, ...] = ()  # names of the labels

    @classmethod
    def of(cls, fields: Sequence[str], image_format: str | None, quality: int | None) -> SampleEncoder:
        """Return an encoder for options of ``write_store``. Raise TypeError or OptionError for a wrong option."""
        names = checked_names("fields", fields, "('image', 'label')")
        if len(set(names)) < len(names):
            raise OptionError(f"fields must be different names, got {short_repr(names)}")
        Image.init()
        known = [name for name in FORMATS if name in Image.SAVE and name in Image.OPEN]
        name = "PNG" if image_format is None else str(image_format).upper()
        if name not in known:
            raise OptionError(
                f"image_format must be one of {', '.join(known)}, such as PNG or JPEG, got {image_format!r}"
            )
        quality = whole_number("quality", quality, 1, 100, none=True)
        if quality is not None and name not in _WITH_QUALITY:
            raise OptionError(f"quality needs one of the formats {', '.join(_WITH_QUALITY)}: give image_format='JPEG'")
        return cls(names, name, {} if quality is None else {"quality": quality}, warns=image_format is None)

    def __call__(self, samples: Iterable[Any]) -> RecordBatch:
        """Return the records of a batch. Tensors become arrays: torch opens a file for each tensor from a worker."""
        return RecordBatch([self.record_or_error(sample) for sample in samples])

    def record_or_error(self, sample: Any) -> Made:
        """Return the record, or its error: if a worker raised the error, torch would add a traceback to the message."""
        try:
            return self.record(sample)
        except (FieldError, ImageError) as error:
            return error

    def record(self, sample: Any) -> tuple[Record, str | None, Target | None]:
        """Return the record of a sample, as in ``Made``. Raise FieldError if the sample is wrong."""
        if isinstance(sample, Record):
            return sample, None if sample.image is None else "image", None
        named = {self.columns.get(key, key): value for key, value in self._named(sample).items()}
        if (image_field := self._find_image(named)) is not None:
            named = {"image" if key == image_field else key: value for key, value in named.items()}
        for key in filter(lambda key: is_file(named.get(key)), ("image", *self.files)):
            named[key], name = read_file(key, named[key])
            if key == "image" and name is not None:
                named = {"name": name, **named}
        target = read_target(named.pop("label", None), self.classes)
        if twice := target.fields.keys() & named.keys():
            raise FieldError(f"'label' becomes a field {min(twice)!r}, but the sample has such a field too: rename it")
        named = {key: self._value(key, value) for key, value in {**named, **target.fields}.items()}
        standard = {key: named.pop(key) for key in STANDARD_FIELDS if key in named}
        record = Record(**standard, fields=named)
        if record.label == -1 and "label" in self.columns:  # Hugging Face's ClassLabel uses -1 for no label
            record.label = None
        _check_channels(record.image)
        # Bytes of an unknown format are accepted. To read them, the user needs a ``decode`` that knows the format.
        if isinstance(record.image, bytes) and record.format is None and (facts := find_facts(record.image)):
            record.format, *size = facts[:3]
            record.width, record.height = record.width or size[0], record.height or size[1]
        if target.boxes_in is not None:
            if record.width is None or record.height is None:
                raise FieldError("boxes need the size of their image: give a PIL image or the bytes of an image file")
            pixels = (record.width, record.height)
            record.fields = fit_boxes(record.fields, target.boxes_in, pixels, pixels)
        return record, image_field, target._replace(fields={})

    def _named(self, sample: Any) -> Mapping[Any, Any]:
        if isinstance(sample, Mapping):
            return sample
        if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
            return {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
        if isinstance(sample, (tuple, list)):
            names = getattr(sample, "_fields", self.fields)
            if len(sample) > len(names):
                raise FieldError(
                    f"it has {counted(len(sample), 'item')}, but fields has {counted(len(names), 'name')}: name "
                    f"all items, such as fields=({', '.join(map(repr, [*names, 'caption']))})"
                )
            return dict(zip(names, sample))  # noqa: B905 - a sample may lack its last items
        return {"image": sample}

    def _find_image(self, named: Mapping[Any, Any]) -> str | None:
        """Return the name of the image's field; None without an image. Raise FieldError if several may be the image."""
        if "image" in named or not self.needs_image:
            return "image" if "image" in named else None
        found = [key for key in named if str(key).lower() in IMAGE_NAMES and _is_image(named[key], or_unknown=True)]
        others = [key for key in named if key not in self.files and _is_image(named[key])]
        if len(found) == 1 or not (found or others):
            return found[0] if found else None
        raise FieldError(
            f"which field is the image? It may be any of {', '.join(map(repr, found or others))}: call it 'image', or "
            "give 'image': None if the sample has no image"
        )

    def _value(self, key: str, value: Any) -> Any:
        """Convert a tensor, scalar or PIL image, or a list or dict of such values, for storing in a record."""
        if is_loaded(value, "torch", "Tensor"):
            value = _array(key, value)
        if isinstance(value, (np.ndarray, np.generic)):
            return _number(value)
        if isinstance(value, Image.Image):
            data = _encoded(key, value, *((self.image_format, self.options) if key == "image" else ("PNG", {})))
            is_photo = value.format in _PHOTOS or (value.format is None and len(data) >= _LARGE)
            if key == "image" and self.warns and is_photo:
                warnings.warn(
                    "photographs are stored as PNG, about three times as large as JPEGs: to store unchanged files, use "
                    "convert(), or give the bytes of each file as its image; image_format='JPEG' compresses again, and "
                    "image_format='PNG' silences this warning",
                    stacklevel=2,
                )
            return data
        if isinstance(value, _BYTES):
            return bytes(value)
        if isinstance(value, Mapping):
            return {name: self._value(f"{key}.{name}", item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._value(f"{key}[{position}]", item) for position, item in enumerate(value)]
        return value


def _is_image(value: Any, *, or_unknown: bool = False) -> bool:
    """Return whether a value is an image. ``or_unknown`` accepts bytes of unknown formats and arrays of any dtype."""
    if isinstance(value, _BYTES):
        return or_unknown or find_facts(bytes(value)) is not None
    if is_loaded(value, "torch", "Tensor") or isinstance(value, np.ndarray):
        return value.ndim > 1 if or_unknown else value.ndim == 3 and str(value.dtype).endswith("uint8")
    return is_file(value) or isinstance(value, Image.Image)


def _check_channels(image: Any) -> None:
    """Raise FieldError for pixels with channels first, because no decoder accepts them."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3:
        return
    if image.shape[0] == 3 and image.shape[2] != 3:
        raise FieldError(
            f"field 'image' is an array of the shape {image.shape}, with its channels first, but decoders expect "
            "(height, width, 3): give image.transpose(1, 2, 0), or for a tensor image.permute(1, 2, 0)"
        )


def _array(key: str, tensor: Any) -> np.ndarray[Any, Any]:
    try:
        return tensor.numpy(force=True)  # type: ignore[no-any-return]
    except (TypeError, RuntimeError) as error:
        raise FieldError(
            f"field {key!r} is a tensor of {tensor.dtype} ({tensor.layout}, on {tensor.device}), which cannot become a "
            f"numpy array ({error}): convert it, for example by .float()"
        ) from error


def _number(value: np.ndarray[Any, Any] | np.generic) -> Any:
    """Return a value as an int, float, bool or str if this keeps its shape and dtype; otherwise as an array."""
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
    except Exception as error:  # Pillow's plugins raise errors of any class
        raise _unwritable(key, image, image_format, str(error)) from error
    if lost:
        raise _unwritable(key, image, image_format, f"this would lose its {lost}")
    return file.getvalue()


def _without_orientation(exif: bytes) -> bytes:
    """Remove the orientation from EXIF for a TIFF, because Pillow would apply it when it opens the file."""
    parsed = Image.Exif()
    parsed.load(exif)
    if parsed.pop(ExifTags.Base.Orientation, None) is None:
        return exif
    return parsed.tobytes()


def _lost(image: Image.Image, written: Image.Image) -> str:
    """Return which property the format has silently changed, such as the transparency in a BMP; "" if none."""
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
        f"{remedy}convert the image, for example by .convert('RGB') or numpy.asarray()"
    )
