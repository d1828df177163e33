"""Read boxes from the rows of a listing. A row has one box in four columns. In JSON, it may have a list of boxes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader._describe import short_repr
from dbloader.ext.sources.boxes import BOXES, LABELS, OWN_SIZE, coco_corners, is_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OBJECTS = "objects"  # Hugging Face's column of objects in an image
OBJECT_LABELS = ("category", "categories", "label", "labels")  # possible keys of the classes in this column
AS_COCO = (
    "the column 'objects' became 'boxes' and 'box_labels': its 'bbox' was read as x, y, width, height in pixels, as in "
    "COCO; for fractions give boxes='fractions' (--boxes fractions), for anything else rename the column"
)


class ListedBoxes(NamedTuple):
    """The boxes of a row."""

    corners: list[Sequence[float]]  # x_min, y_min, x_max, y_max of each box
    labels: list[Any]  # class of each box, an integer or a name
    is_coco: bool = False  # whether the boxes were read from COCO's x, y, width, height


def take_box(
    values: dict[str, Any], columns: Sequence[str], size: Sequence[str], *, has_sides: bool
) -> tuple[tuple[float, ...] | None, tuple[int, int]]:
    """Take the columns of a box out of a row's values. Return the corners of the box, and the size of its image.

    ``has_sides`` says whether the last two columns are the width and height of the box.
    """
    corners = [values.pop(column, None) for column in columns]
    sides = [values.pop(column, None) for column in size]
    try:
        width, height = (int(float(side)) for side in sides) if all(sides) and sides else OWN_SIZE
    except (TypeError, OverflowError) as error:
        raise ValueError(f"its width and height are no numbers of pixels: {short_repr(sides, 50)}") from error
    try:
        box = tuple(math.nan if corner in (None, "") else float(corner) for corner in corners)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"its box lacks a number: {error}") from error
    if any(map(math.isnan, box)) and not all(map(math.isnan, box)):
        raise ValueError(f"its box lacks a number: {short_repr(corners, 50)}")
    if math.isnan(box[0]):
        return None, (width, height)
    return coco_corners([*box]) if has_sides else box, (width, height)


def take_boxes(values: dict[str, Any]) -> ListedBoxes | None:
    """Remove the lists of boxes and labels from a row's values. Return the lists; None if the row has no boxes.

    Raises:
        ValueError: A box is not a list of four numbers, or has no label.
    """
    objects = values.get(OBJECTS)
    part = next((key for key in OBJECT_LABELS if key in _keys(objects)), "")
    if part and "bbox" in _keys(objects) and not values.keys() & {BOXES, LABELS}:
        boxes, labels, rest = split_objects(values.pop(OBJECTS), part)
        if rest:
            values[OBJECTS] = rest
        return ListedBoxes(boxes, _checked(labels, len(boxes)), is_coco=True)
    listed = values.get(BOXES)
    if listed is None or isinstance(listed, (bytes, dict)):  # no boxes, or an array that an export wrote
        return None
    is_list = isinstance(listed, list) and all(isinstance(box, list) and len(box) == 4 for box in listed)
    if not is_list or not all(is_number(number) for box in listed for number in box):
        raise ValueError(
            f"its {BOXES!r} must be a list with x_min, y_min, x_max and y_max in pixels for each box, got "
            f"{short_repr(listed, 50)}: rename the column if it holds something else"
        )
    labels = _checked(values.get(LABELS), len(listed))
    del values[BOXES]
    values.pop(LABELS, None)
    return ListedBoxes(listed, labels)


def _checked(given: Any, count: int) -> list[Any]:
    labels = [] if given is None and not count else given
    is_list = isinstance(labels, list) and all(type(label) in (int, str) and label != "" for label in labels)
    if not is_list or len(labels) != count:
        raise ValueError(
            f"its {LABELS!r} must be a list with an integer or a name for each of its {count} boxes, got "
            f"{short_repr(labels, 50)}; if the boxes have no classes, write 0 for each"
        )
    return [*labels]


def split_objects(objects: Any, part: str) -> tuple[list[Sequence[float]], list[Any], dict[str, Any]]:
    """Split a value of Hugging Face's column ``objects`` into (corners, classes, other values) of its boxes.

    ``part`` is the key of the classes.
    """
    if isinstance(objects, list):
        objects = {key: [one and one[key] for one in objects] for key in _keys(objects)}
    rest = dict(objects)
    boxes, labels = (rest.pop(key, None) or [] for key in ("bbox", part))
    if len(boxes) != len(labels):
        raise ValueError(f"the number of boxes is {len(boxes)}, and the number of classes is {len(labels)}")
    if None in labels:
        raise ValueError("an object has no class")
    return [coco_corners(box) for box in boxes], labels, rest


def _keys(objects: Any) -> Mapping[str, Any]:
    first = objects[0] if isinstance(objects, list) and objects else objects
    return first if isinstance(first, dict) else {}
