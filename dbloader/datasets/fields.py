"""Make the fields of samples that are dicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

from dbloader._describe import listed, short_repr
from dbloader.datasets.base import CompositeDataset, RecordDataset, describe_record
from dbloader.datasets.targets import checked_classes, class_names
from dbloader.decoding.decoder import Decoder
from dbloader.decoding.masks_and_boxes import changes_size, crop_boxes, crop_field, decode_field, refuse_masks
from dbloader.errors import ImageError, OptionError
from dbloader.records.record import STANDARD_FIELDS

if TYPE_CHECKING:
    from dbloader.decoding.decoder import Plan
    from dbloader.records.manifest import Manifest
    from dbloader.records.record import Record

_OWN_FIELDS = (*STANDARD_FIELDS, "index")

_BOXES = "boxes"
_FLAGS_OF_BOXES = ("iscrowd", "difficult", "truncated")  # flags in annotations of COCO and VOC

# Maps the kind of a column to a query for the records that have a value.
_WITH_VALUE = {
    **dict.fromkeys(("int", "float"), "FIELD>=0 or FIELD<0"),
    "text": 'FIELD~""',
    "bool": "FIELD or FIELD=false",
}


def checked_fields(fields: Any) -> tuple[str, ...] | dict[str, str] | None:
    """Check the option ``fields``. Return a tuple of fields, or a dict that maps names in the sample to fields."""
    if isinstance(fields, str):
        raise OptionError(f"fields must be several names, such as ({fields!r},), got the one str {fields!r}")
    if fields is None:
        return None
    if not isinstance(fields, Iterable):
        raise TypeError(f"fields must be names, such as ('image', 'label'), or None, got {short_repr(fields)}")
    if not isinstance(fields, Mapping):
        return tuple(fields)
    if [*fields.values()].count("image") > 1:
        raise OptionError(f"fields may give 'image' only one name, got {short_repr(dict(fields))}")
    return dict(fields)


def checked_target(target: Any, fields: tuple[str, ...] | dict[str, str] | None, manifest: Manifest) -> str:
    """Return the field that is the target: the option ``target``, else the store's target, else the label."""
    if target is not None and not isinstance(target, str):
        raise TypeError(f"target must be the name of a field, such as 'label', or None, got {short_repr(target)}")
    if target == "image":
        raise OptionError("target='image' is the input of a network: choose fields=('image',) for images alone")
    if fields is None:
        return target or (manifest.target if manifest.length else "label")
    chosen = names_of(fields).values()
    if target is not None and target not in chosen:
        raise OptionError(f"target={target!r} is not in fields=: add {target!r} to the fields, or leave out target=")
    return target or (manifest.target if manifest.target in chosen else "label")


def names_of(fields: tuple[str, ...] | dict[str, str] | None, target: str = "label") -> dict[str, str]:
    """Return a dict from names in the sample to fields. Without ``fields``, a sample has the image and the target."""
    if fields is None:
        return {"image": "image", "label": target}
    return fields if isinstance(fields, dict) else {name: name for name in fields}


def image_and_label(dataset: Any) -> dict[str, str]:
    """Return the names of the image and the target in a dataset's samples, with the keys "image" and "label"."""
    if isinstance(dataset, ConcatDataset) and dataset.datasets:
        return image_and_label(dataset.datasets[0])
    if isinstance(dataset, Subset) or isinstance(getattr(dataset, "dataset", None), RecordDataset):
        return image_and_label(dataset.dataset)
    result = {"image": "image", "label": "label"}
    fields = getattr(dataset, "fields", None) if isinstance(dataset, (RecordDataset, CompositeDataset)) else None
    if fields is not None:
        named = names_of(fields).items()
        result |= {
            "image" if field == "image" else "label": name
            for name, field in named
            if field in ("image", dataset.target)
        }
    return result


def check_fields(dataset: Any, manifest: Manifest) -> None:
    """Raise OptionError if no record has one of the dataset's fields."""
    known = (*_OWN_FIELDS, *manifest.fields)
    for field in names_of(dataset.fields, dataset.target).values():
        if field not in known:
            hint = "; a dict maps names in the sample to fields" if isinstance(dataset.fields, dict) else ""
            what = f"no record of {dataset.root} has a field {short_repr(field)}"
            raise OptionError(f"{what}; the fields are {listed(known)}{hint}")
    if dataset.fields is None and dataset.target == "label" and manifest.length and not manifest.labelled:
        raise OptionError(
            f"no record of {dataset.root} has a label, so a sample cannot be (image, label): choose another target=, "
            f"or choose fields, such as fields=('image',). The fields are {listed(known)}",
        )
    target_names(dataset)


def target_names(dataset: Any) -> list[str]:
    """Return which names in a sample ``target_transform`` changes: the names of the target field, else "label".

    Raises:
        OptionError: A sample has no image for ``transform``, or no single label for ``target_transform``.
    """
    names, way = names_of(dataset.fields, dataset.target), "or use transforms=, which gets the whole sample"
    if dataset.transform is not None and "image" not in names.values():
        raise OptionError(f"transform= changes the image, but fields= has no image: add 'image', {way}")
    if dataset.target_transform is None:
        return []
    labels = [name for name, field in names.items() if field == dataset.target]
    found = labels or [name for name in names if name == "label"]
    own = getattr(dataset.target_transform, "then", dataset.target_transform)  # a mixture keeps it in UnitedLabels.then
    if not found or (own is not None and labels and names.get("label", "label") not in ("label", dataset.target)):
        what = "two fields may be the label" if found else "fields= has no label"
        raise OptionError(f"target_transform= changes the label, but {what}: name one field 'label', {way}")
    return found


def value_of(record: Record, field: str) -> Any:
    """Return the stored value of a field, or None if the record does not have the field."""
    return getattr(record, field) if field in _OWN_FIELDS else record.fields.get(field)


def has_fields_to_crop(dataset: Any) -> bool:
    """Return whether samples have an image, and also masks or boxes to crop with the image."""
    if dataset.fields is None and dataset.target == "label":
        return False
    fields = {*names_of(dataset.fields, dataset.target).values()}
    return "image" in fields and not fields.isdisjoint((_BOXES, *dataset.manifest.file_fields))


def has_image(fields: tuple[str, ...] | dict[str, str] | None) -> bool:
    """Return whether samples with these fields have an image."""
    return "image" in names_of(fields).values()


def join_image(fields: tuple[str, ...] | dict[str, str] | None, image: Any, rest: Any) -> Any:
    """Join the image and the other fields of a sample. Or join the images and the other fields of a batch."""
    if fields is None:
        return (image, *rest)
    return {name: image if field == "image" else rest[name] for name, field in names_of(fields).items()}


def other_fields(dataset: Any, record: Record, plan: Plan | None) -> dict[str, Any]:
    """Return all fields of a sample without its image. Keys are the names in the sample.

    Args:
        dataset: The StoreDataset.
        record: The record of the sample.
        plan: A Decoder's plan for the image, or None. The plan also crops files and boxes.

    Raises:
        OptionError: The image is cropped, but a file or boxes cannot be cropped with the image.
    """
    names = {name: field for name, field in names_of(dataset.fields, dataset.target).items() if field != "image"}
    values = {field: value_of(record, field) for field in names.values()}
    crops = has_image(dataset.fields) and (changes_size(dataset.decode) or changes_size(dataset.transform))
    files = [name for name in dataset.manifest.file_fields if values.get(name) is not None]
    if dataset.decode is None:
        files = []
    known = {"known_intact": dataset.manifest.has_decoded_images}
    if plan is None:
        if files and (crops or isinstance(dataset.decode, Decoder)):
            raise OptionError(
                f"field {files[0]!r} of {describe_record(record, dataset.root)} would not be cropped together with its "
                "image: pass decode=None, or add the field 'image' and pass decode=RandomResizedCrop(224) or another "
                "Decoder that makes one crop (in create_loader: transform=)"
            )
        cropped: dict[str, Any] = {name: _read_file(name, decode_field, values[name], **known) for name in files}
    else:
        exif = {"exif_transpose": dataset.decode.exif_transpose}
        cropped = {name: _read_file(name, crop_field, values[name], plan, **known, **exif) for name in files}
        if values.get(_BOXES) is not None:
            placed = crop_boxes(_checked_boxes(values[_BOXES]), plan, record.image, **exif)
            cropped |= _rows_of_boxes(values, placed)
    if crops:
        rest = {name: value for name, value in values.items() if name not in cropped and name not in _OWN_FIELDS}
        refuse_masks(record.image, rest, describe_record(record, dataset.root))
    values |= cropped
    if dataset.target != "label" and dataset.target in values:
        values[dataset.target] = _target_value(dataset, record, values[dataset.target])
    return {name: values[field] for name, field in names.items()}


def _target_value(dataset: Any, record: Any, value: Any) -> Any:
    """Return the target of a sample. ``value`` is the stored value. Several classes become a tensor of 0 and 1.

    Raises:
        OptionError: The record has no value, but samples are (image, target). Or the value is no list of classes.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):  # for columns and queries, NaN is no value
        if dataset.fields is not None:
            return value
        name = dataset.target if dataset.target.isidentifier() else f'"{dataset.target}"'
        query = _WITH_VALUE.get(dataset.manifest.columns.get(dataset.target, ""), "").replace("FIELD", name)
        way = f"where={query!r} selects the records with a value" if query else "leave such records out with a Subset"
        raise OptionError(f"{describe_record(record, dataset.root)} has no {dataset.target}: {way}")
    if isinstance(value, np.ndarray) and not value.shape:
        return value.item()  # to keep the dtype, write_store stores a NumPy number as an array without axes
    names = class_names(dataset.manifest, dataset.target)
    if not names or not isinstance(value, (list, np.ndarray)):
        return value
    vector = torch.zeros(len(names))
    vector[checked_classes(dataset.target, value, len(names))] = 1
    return vector


def _read_file(name: str, read: Any, *arguments: Any, **options: Any) -> Any:
    """Call ``read`` with the file of a field. An error names the field."""
    try:
        return read(*arguments, **options)
    except (ImageError, OptionError) as error:
        raise type(error)(f"field {name!r}: {error}") from error


def has_row_for_each_box(field: str) -> bool:
    """Return whether a field contains boxes, or may have a row for each box."""
    return field == _BOXES or field.startswith("box_") or field in _FLAGS_OF_BOXES


def _checked_boxes(value: Any) -> np.ndarray[Any, Any]:
    """Check boxes, and return them as an array: float64, shape (n, 4). ``value`` may be a list or an array."""
    with suppress(TypeError, ValueError):  # the values are not numbers, or the rows differ in length
        boxes = np.asarray(value, np.float64)
        boxes = boxes if boxes.size else boxes.reshape(0, 4)
        if boxes.ndim == 2 and boxes.shape[1] == 4 and (boxes[:, 2:] >= boxes[:, :2]).all():
            return boxes
    raise OptionError(
        "field 'boxes' must have a row x_min, y_min, x_max, y_max in pixels for each box, with min <= max, got "
        f"{short_repr(value)}: store such rows, or leave the field out"
    )


def _rows_of_boxes(values: dict[str, Any], boxes: Any) -> dict[str, Any]:
    """Drop boxes that have no area after the crop. Return the other boxes, and their rows in other fields."""
    kept = (boxes[:, 2:] > boxes[:, :2]).all(1)
    result = {_BOXES: boxes[kept]}
    for name, value in values.items():
        if name != _BOXES and has_row_for_each_box(name) and isinstance(value, (np.ndarray, list)):
            if len(value) != len(boxes):
                raise OptionError(
                    f"field {name!r} has {len(value)} rows, but 'boxes' has {len(boxes)}: leave one of the fields out"
                )
            result[name] = value[kept] if isinstance(value, np.ndarray) else [*compress(value, kept)]
    return result
