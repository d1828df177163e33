"""Turn the targets that torchvision's datasets return into fields of records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree as ET

import numpy as np
from PIL import Image

from dbloader._describe import short_repr
from dbloader.errors import FieldError
from dbloader.ext.collecting.stored_records import is_loaded
from dbloader.ext.sources.voc import object_fields, object_names, size_of
from dbloader.records.manifest import CLASS_LISTS

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBER, _MASK = "target", "mask"  # names of fields


class Target(NamedTuple):
    """The target of a sample as fields of a record."""

    fields: dict[str, Any]
    kind: str | None = None  # kind of the target, such as "several classes"; None if the sample has no target
    field: str | None = None  # the target field of the store; None for labels and boxes
    files: tuple[str, ...] = ()  # fields with image files
    boxes_in: tuple[int, int] | None = None  # size of the image that contains the boxes, if there are boxes


def read_target(value: Any, classes: Sequence[str]) -> Target:
    """Return the fields for a target. Raise FieldError if the meaning of the target is unclear.

    Args:
        value: A label (an integer, the name of a class, or None), a float, or an array with 0 or 1 for each class. It
            may also be the dict of a VOCDetection, a mask (a PIL image), or a pair of a mask and a label.
        classes: The class names in the order of their labels.
    """
    if is_loaded(value, "torch", "Tensor"):
        value = value.numpy(force=True)
    if isinstance(value, (np.ndarray, np.generic)) and not value.shape and value.dtype.kind in "iuf":
        value = value.item()
    if value is None or (isinstance(value, (int, str)) and not isinstance(value, bool)):
        return Target({"label": value}, None if value is None else "label")
    if isinstance(value, float):
        return Target({_NUMBER: float(value)}, "float", _NUMBER)
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "biuf":
        return _several_classes(value, classes)
    if isinstance(value, Image.Image):
        return Target({_MASK: value}, "mask", _MASK, (_MASK,))
    if isinstance(value, (tuple, list)) and len(value) == 2:
        masks = [part for part in value if isinstance(part, Image.Image)]
        labels = [part for part in value if not isinstance(part, (Image.Image, float, Mapping))]
        if len(masks) == len(labels) == 1 and (label := read_target(labels[0], classes)).kind in ("label", None):
            return Target({**label.fields, _MASK: masks[0]}, "label and mask", None, (_MASK,))
    if isinstance(value, Mapping) and isinstance(value.get("annotation"), Mapping):
        return _boxes(value["annotation"], classes)
    raise FieldError(
        "field 'label' must be an int, or the name of a class, or another target that write_store knows, got "
        f"{short_repr(value)}: give other values a field of their own, such as "
        "fields=('image', 'caption'), and read them by LMDBDataset(place, target='caption'); store boxes by convert()"
    )


def _several_classes(values: np.ndarray[Any, Any], classes: Sequence[str]) -> Target:
    if len(values) != len(classes) or not np.isin(values, (0, 1)).all():
        raise FieldError(
            f"field 'label' must have one number, 0 or 1, for each class name, got {len(values)} numbers "
            f"{short_repr(values)} and {len(classes)} names: pass {len(values)} names as classes=, or put other "
            "numbers into another field, such as fields=('image', 'points')"
        )
    return Target({"label": None, CLASS_LISTS: np.flatnonzero(values).tolist()}, "several classes", CLASS_LISTS)


def _boxes(annotation: Mapping[str, Any], classes: Sequence[str]) -> Target:
    found = _element("annotation", annotation)
    labels = {name: label for label, name in enumerate(classes)}
    if unknown := object_names(found) - labels.keys():
        raise FieldError(f"its annotation has the class {min(unknown)!r}: give all names in their order as classes=")
    try:
        return Target(object_fields(found, labels), "boxes", boxes_in=size_of(found))
    except ValueError as error:
        raise FieldError(f"its annotation {error}") from error


def _element(tag: str, value: Any) -> ET.Element:
    """Convert a dict from torchvision's parse_voc_xml back to XML."""
    element = ET.Element(tag)
    if isinstance(value, Mapping):
        for name, parts in value.items():
            element.extend(_element(name, part) for part in (parts if isinstance(parts, list) else [parts]))
    else:
        element.text = str(value)
    return element
