"""Store boxes of the objects in an image as fields of the image's record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import short_repr
from dbloader.errors import FieldError
from dbloader.ext.sources.options import decided_boxes
from dbloader.images.info import UPRIGHT, find_facts, orientation_of
from dbloader.images.pillow import TURNS, open_pillow, turn_boxes
from dbloader.images.png import read_chunks
from dbloader.records.manifest import CLASS_LISTS
from dbloader.records.values import unpack
from dbloader.sources.base import Problem, read_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dbloader.conversion.transcode import Stored
    from dbloader.images.info import Facts
    from dbloader.sources.base import Entry

BOXES, LABELS = "boxes", "box_labels"
FLAGS = ("iscrowd", "difficult", "truncated")  # fields of COCO and VOC with a value for each box
FRACTIONS, OWN_SIZE = (1, 1), (0, 0)  # special values of ``boxes_in``, see `Entry`
AS_FRACTIONS = (
    "the values of all boxes are from 0 to 1, so they are read as fractions of the width and height: confirm this by "
    "boxes='fractions' (--boxes fractions), or if they are pixels, give boxes='pixels' (--boxes pixels)"
)
_OF_ANOTHER = "of the turned or unturned image, give boxes='upright' or 'stored' (--boxes)"
_MAX_BYTES = 2**24  # limit for one image's annotation file; parsed annotations take about ten times as much memory
_ROUNDING = 1.0  # a box may extend beyond its image by this many pixels, because coordinates are rounded


def read_annotation(path: bytes) -> bytes:
    """Return the bytes of one image's annotation file; ValueError if it cannot be read or is too large."""

    def check(size: int) -> None:
        if size > _MAX_BYTES:
            raise ValueError(f"has more than {_MAX_BYTES:,} bytes")

    data = read_file("", path, check)
    if isinstance(data, Problem):
        raise ValueError(data.reason)  # noqa: TRY004
    return data


def box_fields(boxes: Sequence[Sequence[float]], labels: Sequence[int]) -> dict[str, Any]:
    """Return the fields of boxes and their labels.

    The boxes are (x_min, y_min, x_max, y_max): float64, shape (boxes, 4). The labels are int64, shape (boxes,).
    Coordinates are rounded only once, later, when ``fit_boxes`` converts the boxes to float32.
    """
    return {BOXES: np.array(boxes, np.float64).reshape(-1, 4), LABELS: np.array(labels, np.int64)}


def coco_corners(box: Any) -> tuple[float, float, float, float]:
    """Return x_min, y_min, x_max, y_max of a COCO box, [x, y, width, height]; ValueError if it is not such a box."""
    if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
        raise ValueError(f"must have a bbox of four numbers, got {short_repr(box, 50)}")
    x, y, width, height = box
    return x, y, x + width, y + height


def relabeled(entry: Entry, labels: Sequence[int], target: str) -> Entry:
    """Return an entry with ``labels[n]``, a label of the store, in place of each label n of the source.

    Raises:
        FieldError: ``labels`` has no item n.
    """
    fields, known = entry.fields, dict(enumerate(labels))  # a list would accept the label -1
    try:
        if LABELS in fields:
            fields = {**fields, LABELS: relabel_boxes(unpack(fields[LABELS]), known)}
        if target == CLASS_LISTS and fields.get(CLASS_LISTS):
            fields = {**fields, CLASS_LISTS: relabel_boxes(fields[CLASS_LISTS], known)}
        label = None if entry.label is None else known[entry.label]
    except KeyError as error:
        raise FieldError(f"has the label {error}, but no class has this label") from error
    return entry._replace(label=label, fields=fields)


def relabel_boxes(labels: Any, table: Mapping[int, int]) -> Any:
    """Replace each label of boxes by its value in ``table``. The labels are in an array or a list.

    Labels that are text do not change. Raise KeyError if the table lacks a label.
    """
    if isinstance(labels, np.ndarray):
        new = [table[label] for label in labels.ravel().tolist()] if labels.dtype.kind in "iuf" else None
        return labels if new is None else np.array(new, np.int64).reshape(labels.shape)
    if isinstance(labels, list):
        return [relabel_boxes(label, table) for label in labels]
    return table[labels] if type(labels) in (int, float) else labels


def is_number(value: object) -> bool:
    """Return whether a value can be a coordinate."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9


def place_boxes(
    fields: dict[str, Any],
    boxes_in: Sequence[int] | None,
    decided: str | None,
    data: bytes,
    image: Facts | None,
    stored: Stored,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Convert a record's boxes to pixels of the stored image. Return the fields, and remarks for the report.

    Remarks: "flat" for boxes without an area, "turned" for boxes or a mask that may not fit the image turned by EXIF.

    ``boxes_in`` is ``Entry.boxes_in``. ``decided`` is the option ``boxes``. ``data`` is the image file. ``image`` is
    its format and size; None for an unknown format.

    Raises:
        FieldError: The boxes do not fit the image.
    """
    orientation, remarks = UPRIGHT, {}
    frame, unit = decided_boxes(decided)
    if boxes_in is not None and unit is not None and (unit == "fractions" or tuple(boxes_in) == FRACTIONS):
        boxes_in = FRACTIONS if unit == "fractions" else OWN_SIZE
    if boxes_in is not None and image:
        orientation = find_orientation(data)
        frame, is_unclear = choose_frame(boxes_in, image[1:3], orientation, frame)
        if is_unclear and len(fields[BOXES]):
            remarks["turned"] = f"has EXIF orientation {orientation}; its boxes are taken to fit the stored image"
        if frame == "stored":
            orientation = UPRIGHT
    if boxes_in is None and stored.reencoded and {BOXES, LABELS} <= fields.keys():  # boxes of a store or an export
        boxes_in = OWN_SIZE
    if boxes_in is not None and image and stored.facts:
        fields = fit_boxes(fields, boxes_in, image[1:3], stored.facts[1:3], orientation)
    elif boxes_in is not None:
        raise FieldError("is in no known image format, so its boxes cannot be compared with its size")
    if BOXES in fields:
        fields, flat = without_flat(fields)
        remarks |= {"flat": flat} if flat else {}
    if image and not remarks.get("turned") and (mask := _unturned_file(fields, data, image)):
        remarks["turned"] = f"has an EXIF orientation, and its {mask} has none, so EXIF turns only the image"
    return fields, remarks


def _unturned_file(fields: Mapping[str, Any], data: bytes, image: Facts) -> str:
    """Return the field of an image file, such as a mask, that lacks the EXIF orientation of its image; "" without one.

    If EXIF exchanges the image's unequal width and height, return "": training finds a file of the wrong size.
    """
    files = {name: value for name, value in fields.items() if isinstance(value, bytes)}
    orientation = find_orientation(data) if files else UPRIGHT
    if orientation == UPRIGHT or (TURNS[orientation][0] and image.width != image.height):
        return ""
    unturned = (name for name, value in files.items() if find_facts(value) and find_orientation(value) == UPRIGHT)
    return next(unturned, "")


def find_orientation(data: bytes) -> int:
    """Return the EXIF orientation of an image file, from 1 to 8; 1 if the file cannot be read."""
    try:
        # Pillow decodes a whole PNG to look for EXIF after the pixels.
        chunks = read_chunks(data) if data.startswith(b"\x89PNG") else None
        if chunks and not any(kind == b"eXIf" or data[at + 8 : at + 11] in (b"Raw", b"XML") for kind, at, _ in chunks):
            return UPRIGHT
        with open_pillow(data) as image:
            return orientation_of(image)
    except MemoryError:
        raise  # the file may be intact
    except Exception:  # Pillow's parsers raise many types of errors
        return UPRIGHT


def choose_frame(
    boxes_in: Sequence[int], size: tuple[int, int], orientation: int, decided: str | None
) -> tuple[str, bool]:
    """Return the image that boxes fit, and whether this is a guess.

    The image is "stored", or "upright" after EXIF has turned it. ``boxes_in`` is ``Entry.boxes_in``. ``size`` is the
    width and height of the stored image. Fractions, as in YOLO's labels, fit the upright image, because Ultralytics
    trains on upright images. Other boxes fit the image whose size the annotations give. If this size fits both images
    or none, the guess is the stored image, as in pycocotools and torchvision.
    """
    if decided is not None:
        return decided, False
    if orientation == UPRIGHT or tuple(boxes_in) == FRACTIONS:
        return "upright", False
    exchanged = size[::-1] if TURNS[orientation][0] else size
    if tuple(boxes_in) in (size, exchanged) and size != exchanged:
        return "stored" if tuple(boxes_in) == size else "upright", False
    return "stored", True


def without_flat(fields: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return fields without the boxes whose area is 0, and a remark; "" if there are no such boxes."""
    try:
        boxes = np.asarray(fields[BOXES], np.float64)
        kept = (boxes[:, 2] != boxes[:, 0]) & (boxes[:, 3] != boxes[:, 1])
    except (TypeError, ValueError, IndexError):  # a listing may call something else "boxes"
        return fields, ""
    if kept.all() or boxes.shape[1] != 4:
        return fields, ""
    rows = {name: value for name, value in fields.items() if name == BOXES or name.startswith("box_") or name in FLAGS}
    for name, value in rows.items():
        if isinstance(value, np.ndarray) and len(value) == len(kept):
            rows[name] = value[kept]
        elif isinstance(value, list) and len(value) == len(kept):
            rows[name] = [row for row, keep in zip(value, kept.tolist(), strict=True) if keep]
    flat = boxes[~kept]
    first = flat[0].round(2).tolist()
    return {**fields, **rows}, f"{len(flat)} of its {len(boxes)} boxes left out, because they have no area: {first}"


def fit_boxes(
    fields: dict[str, Any],
    boxes_in: Sequence[int],
    size: tuple[int, int],
    stored: tuple[int, int],
    orientation: int = UPRIGHT,
) -> dict[str, Any]:
    """Return fields with their boxes in pixels of the stored image.

    ``boxes_in`` is ``Entry.boxes_in``. ``size`` is the width and height of the source's image, before EXIF turns it.
    ``stored`` is the size of the image in the store. ``orientation`` is the EXIF orientation for boxes in the upright
    image, and 1 for other boxes. A box that extends up to a pixel beyond the image is cut at the edge.

    Raises:
        FieldError: A box is not within the image, its corners are swapped, or the annotations give a wrong size of the
            image.
    """
    given = np.asarray(fields[BOXES])
    boxes_in, file_size = (boxes_in[0], boxes_in[1]), size
    size = size[::-1] if TURNS[orientation][0] else size
    if not len(given):
        return {**fields, BOXES: given.astype(np.float32)} if given.shape == (0, 4) else fields
    if given.ndim != 2 or given.shape[1] != 4 or given.dtype.kind not in "iuf":
        raise FieldError(f"its field {BOXES!r} must be an array of shape (boxes, 4), got {short_repr(fields[BOXES])}")
    if boxes_in not in (FRACTIONS, OWN_SIZE, size):
        annotated, found = (f"{width} x {height}" for width, height in (boxes_in, size))
        raise FieldError(f"has {found} pixels, but its annotations are for {annotated} pixels")
    boxes = given * np.array([*size, *size] if boxes_in == FRACTIONS else 1.0)
    low, high, edge = boxes[:, :2], boxes[:, 2:], np.array(size)
    right = (low >= -_ROUNDING) & (high <= edge + _ROUNDING) & (low <= high)
    if not right.all():
        at = int(np.flatnonzero(~right.all(axis=1))[0])
        way = "in pixels, give boxes='pixels' (--boxes pixels)" if boxes_in == FRACTIONS else _OF_ANOTHER
        where = f"is not within its {size[0]} x {size[1]} pixels; mend it, or if boxes are {way}"
        raise FieldError(f"its box {at}, {boxes[at].round(2).tolist()}, {where}")
    boxes = turn_boxes(np.clip(boxes, 0, [*size, *size]), orientation, *size, back=True)
    boxes = boxes * np.array([*stored, *stored]) / np.array([*file_size, *file_size])
    return {**fields, BOXES: boxes.astype(np.float32)}
