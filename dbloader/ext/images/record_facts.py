"""Collect the facts of a record in values that JSON can represent."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import ExifTags

from dbloader._describe import size
from dbloader.errors import DamagedImageError, ImageError, NotAnImageError, NotTiledError, OptionError
from dbloader.images import markers
from dbloader.images.info import read_facts
from dbloader.images.jpeg import State, examine
from dbloader.images.pillow import open_pillow, translate_errors
from dbloader.images.tiled.decode import read_grid, read_header

if TYPE_CHECKING:
    from dbloader.records.record import Record
    from dbloader.stores.base import Store

_PROCESSES = {markers.SOF0: "baseline", markers.SOF1: "extended", markers.SOF2: "progressive"}
_SUBSAMPLINGS = {(1, 1): "4:4:4", (1, 2): "4:4:0", (2, 1): "4:2:2", (2, 2): "4:2:0", (4, 1): "4:1:1"}
_FACTS = ("index", "name", "label", "format", "width", "height", "damaged", "resized_from")
_ELEMENTS = 400  # an array with more elements is shown only by its dtype, shape and first numbers
_FIRST = 8  # number of first values shown of a large vector


def record_facts(store: Store, record: Record) -> dict[str, Any]:
    """Return facts about a record, its fields, the EXIF of its image, and the structure of its JPEG."""
    image, jpeg, exif = record.image, {}, {}
    if isinstance(image, bytes):
        jpeg = _describe_jpeg(image)
        try:
            exif = _read_exif(image)
        except (ImageError, OptionError) as error:
            exif = {"error": str(error)}
    fields = {name: _plain(value) for name, value in record.fields.items()}
    files = {name: record.fields.get(name) for name in store.manifest.file_fields}
    fields |= {name: _describe_file(data) for name, data in files.items() if isinstance(data, bytes)}
    return {
        "place": store.place,
        **{name: getattr(record, name) for name in _FACTS},
        "class": store.manifest.class_name(record.label),
        "bytes": len(image) if isinstance(image, bytes) else None,
        "array": _plain(image) if isinstance(image, np.ndarray) else None,
        "fields": fields,
        "exif": {name: _plain(value) for name, value in exif.items()},
        "jpeg": jpeg,
    }


def _describe_file(data: bytes) -> str:
    try:
        facts = read_facts(data)
    except NotAnImageError as error:
        return f"{size(len(data))}, {error}"
    return f"{facts.format}, {facts.width} x {facts.height}, {facts.depth}, {size(len(data))}"


def _plain(value: Any) -> Any:
    """Return a value for JSON. Arrays become lists. Bytes, large arrays and numbers that are not finite become text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Real):  # EXIF has fractions, and their denominator may be 0
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, np.ndarray) and (value.size > _ELEMENTS or value.dtype.kind not in "biuf"):
        is_vector = value.ndim == 1 and value.dtype.kind in "biuf"
        first = f": {', '.join(f'{one:.6g}' for one in value[:_FIRST])}, …" if is_vector else ""
        return f"{value.dtype} array of shape {value.shape}{first}"
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return size(len(value)) if isinstance(value, bytes) else str(value)


def _describe_jpeg(data: bytes) -> dict[str, Any]:
    """Describe the structure of a JPEG up to the first damage. Return {} for other files."""
    found = examine(data)
    if found.state is State.NOT_JPEG:
        return {}
    facts: dict[str, Any] = {"structure": found.reason or "complete"}
    if found.frame:
        process, sampling = found.frame.process, found.frame.sampling
        facts["process"] = f"{_PROCESSES.get(process, f'SOF{process - markers.SOF0}')}, {found.frame.precision} bits"
        if len(sampling) == 1:
            facts["subsampling"] = "gray"
        elif sampling[1:] == ((1, 1), (1, 1)) and sampling[0] in _SUBSAMPLINGS:
            facts["subsampling"] = _SUBSAMPLINGS[sampling[0]]
        else:
            facts["subsampling"] = ", ".join(f"{h}x{v}" for h, v in sampling)
    try:
        header = read_header(memoryview(data))
        facts["restart_interval"] = header.interval
        facts["tiles"] = read_grid(header)._asdict()
    except (NotTiledError, DamagedImageError):
        pass  # not tiled
    return facts


def _read_exif(data: bytes) -> dict[str, Any]:
    """Return the EXIF values by name; raise DamagedImageError if EXIF or the header is damaged."""
    with translate_errors("its EXIF cannot be read"), open_pillow(data) as image:
        exif = image.getexif()
        values = {**exif, **exif.get_ifd(ExifTags.IFD.Exif)}
        values.pop(ExifTags.IFD.Exif, None)
        return {ExifTags.TAGS.get(tag, str(tag)): value for tag, value in values.items()}
