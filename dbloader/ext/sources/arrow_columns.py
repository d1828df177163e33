"""Find the image, the label and the fields among the columns of an Arrow table.

A column stores NumPy arrays as nested lists. An `ArrayRule` in the table's metadata restores the arrays.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dbloader.errors import SourceError
from dbloader.ext.sources.boxes import BOXES
from dbloader.ext.sources.boxes import LABELS as BOX_LABELS
from dbloader.ext.sources.labels import IMAGE_NAMES, LABEL_NAMES
from dbloader.ext.sources.listed_boxes import AS_COCO, OBJECT_LABELS, OBJECTS
from dbloader.ext.sources.listing_columns import field_name
from dbloader.records.manifest import CLASS_LISTS, TARGET
from dbloader.records.record import RESERVED_FIELDS
from dbloader.sources.folder import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OWN = b"dbloader"  # key that dbloader's exports write into the metadata
_FIELD_TYPES = (
    types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_string, types.is_large_string,
    types.is_binary, types.is_large_binary, types.is_fixed_size_binary,
)  # fmt: skip
_MOST_AXES, _MOST = 32, 2**31


class TableColumns(NamedTuple):
    """The meaning of a table's columns."""

    image: str
    path: str | None  # column with the path of the image, such as "image.path"; None if there is none
    label: str | None
    classes: tuple[str, ...]  # class names of the label, if it is a Hugging Face ClassLabel; else ()
    fields: dict[str, tuple[str, Any]]  # column -> name of its field, and its Arrow type or ArrayRule
    absent: frozenset[str]  # columns where null means that a record lacks the field
    is_own: bool  # whether dbloader wrote the table
    files: tuple[str, ...]  # columns with image files that become fields, such as masks
    field_classes: dict[str, list[str]]  # class names for fields of integers, as in a Manifest
    target: str  # the field that training predicts; "" for the label
    several: str  # column with a list of classes for each image; "" without one
    objects: tuple[str, str] | None  # column of boxes, and key of the classes in it: ("objects", "category")
    warnings: tuple[str, ...]


def find_columns(schema: Any, where: str, file_fields: Sequence[str] = ()) -> TableColumns:
    """Return the meaning of the columns of a schema.

    ``file_fields`` names columns with image files that become fields, such as masks. It need not name the columns that
    dbloader's export, or Hugging Face's Image feature, marks as images.

    Raises:
        SourceError: It is unclear which column is the image, or two columns have the same name.
    """
    kinds = {field.name: field.type for field in schema}
    if len(kinds) < len(schema.names):
        raise SourceError(f"{where}: two of its columns have the same name: rename one")
    is_own = _OWN in (schema.metadata or {}) and _may_be_image(kinds.get("image", pa.null()))
    own = _metadata(schema, _OWN) if is_own else {}
    features = _metadata(schema, b"huggingface", "info", "features")
    warnings: list[str] = []

    image_features = _with_feature(features, "Image", kinds, _may_be_image)
    image = "image" if is_own else _find_image(kinds, image_features, where, warnings)
    further = {*file_fields, *_strings(own.get("files"))} if is_own else {*file_fields, *image_features}
    files = tuple(
        name
        for name, kind in kinds.items()
        if name in further and name != image and _has_path(kind) and _may_be_image(kind)
    )

    class_labels = _with_feature(features, "ClassLabel", kinds, types.is_integer)
    named = [name for name, kind in kinds.items() if name != image and (types.is_integer(kind) or _is_text(kind))]
    named = [name for name in LABEL_NAMES if name in named]
    labels = [name for name in ("label",) if name in kinds] if is_own else class_labels or named[:1]
    label = choose(labels, (*LABEL_NAMES, *labels), "label", warnings)
    classes = features[label].get("names") if label in class_labels else None

    others = {name: kind for name, kind in kinds.items() if name not in (image, label)}
    column, target = ("", str(own.get("target") or "")) if is_own or label else _find_target(others, features)
    plain = {name: kind for name, kind in others.items() if name != column}
    fields = _find_fields(plain, kinds, _metadata(schema, _OWN, "arrays"), where, warnings, is_own=is_own)
    fields |= {column: (target, kinds[column])} if column else {}
    field_classes = {
        part: of for name, (field, _) in fields.items() for part, of in named_parts(features.get(name), field)
    }
    if target == CLASS_LISTS and column:
        classes = field_classes.pop(CLASS_LISTS, [])
    objects = None if is_own or label or column else _find_objects(kinds)
    if objects is not None and objects[0] in fields:
        classes = field_classes.pop(".".join(objects), [])
        warnings.append(AS_COCO)
    return TableColumns(
        image=image,
        path=image if types.is_string(kinds[image]) else f"{image}.path" if _has_path(kinds[image]) else None,
        label=label,
        classes=tuple(map(str, classes)) if isinstance(classes, list) else (),
        fields=fields,
        absent=frozenset(_strings(own.get("absent"))),
        is_own=is_own,
        files=files,
        field_classes=field_classes,
        target=target,
        several=column if target == CLASS_LISTS else "",
        objects=objects,
        warnings=tuple(warnings),
    )


def _find_target(kinds: dict[str, Any], features: dict[str, Any]) -> tuple[str, str]:
    """Return (column, field) of labels that are floats or lists of classes; ("", "") without such labels.

    A column of floats needs only a usual name, such as label. A column of lists must have a Hugging Face ClassLabel, or
    such a name and texts in the lists. Beside another list, it may have the classes of boxes, so it is not chosen.
    """
    lists = [name for name, kind in kinds.items() if _is_list(kind) and not types.is_floating(kind.value_type)]
    named = [name for name in lists if any(path == name for path, _ in named_parts(features.get(name), name))]
    texts = [name for name in LABEL_NAMES if name in lists and _is_text(kinds[name].value_type)]
    numbers = [name for name in LABEL_NAMES if types.is_floating(kinds.get(name, pa.null()))]
    for name in (*((named or texts) if len(lists) == 1 else ()), *numbers):
        field = CLASS_LISTS if name in lists else TARGET if name in RESERVED_FIELDS else name
        if field == name or field not in kinds:
            return name, field
    return "", ""


def _find_image(kinds: dict[str, Any], features: list[str], where: str, warnings: list[str]) -> str:
    """Return the column of images: a Hugging Face Image, a struct with bytes, bytes, or text with a usual name."""
    found = features or [name for name, kind in kinds.items() if types.is_struct(kind) and _may_be_image(kind)]
    found = found or [name for name, kind in kinds.items() if _is_bytes(kind)]
    found = found or [name for name in IMAGE_NAMES if types.is_string(kinds.get(name, pa.null()))]
    image = choose(found, IMAGE_NAMES, "image", warnings)
    if image is None:
        which = f"it may be any of {quoted(found)}" if found else f"the columns are {quoted([*kinds])}"
        way = "call the right one 'image'" + "; if the images are files, convert only their folder" * (not found)
        raise SourceError(f"{where}: cannot tell which column is the image: {which}; {way}")
    return image


def _find_fields(
    columns: dict[str, Any],
    kinds: dict[str, Any],
    arrays: dict[str, Any],
    where: str,
    warnings: list[str],
    *,
    is_own: bool,
) -> dict[str, tuple[str, Any]]:
    """Return the name of each column's field, and its type or ArrayRule. Omit columns that cannot be fields."""
    fields: dict[str, tuple[str, Any]] = {}
    for name, kind in columns.items():
        if name in arrays:
            try:
                fields[name] = name, read_rule(arrays[name], kind)
            except ValueError as error:
                raise SourceError(f"{where}: its metadata cannot be read: column {name!r}: {error}") from error
        elif not _may_be_field(kind):
            warnings.append(
                f"the column {name!r} is left out: no field can have the type {kind}; write it as text to keep it"
            )
        else:
            fields[name] = name if is_own else field_name(name, kinds), kind
            if fields[name][0] != name:
                way = f"became the field {fields[name][0]!r}, because no field can be called {name!r}"
                warnings.append(f"the column {name!r} {way}")
    return fields


def named_parts(feature: Any, path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the path, such as "objects.category", and the class names of each ClassLabel in a Hugging Face feature."""
    if isinstance(feature, list):
        for inner in feature[:1]:
            yield from named_parts(inner, path)
    elif isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
        names = feature.get("names")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            yield path, names
    elif isinstance(feature, dict) and isinstance(feature.get("_type"), str):  # the feature is a Sequence or List
        yield from named_parts(feature.get("feature"), path)
    elif isinstance(feature, dict):
        for name, inner in feature.items():
            yield from named_parts(inner, f"{path}.{name}")


def _find_objects(kinds: dict[str, Any]) -> tuple[str, str] | None:
    """Return (column of boxes, key of their classes), such as ("objects", "category"); None without boxes."""
    kind = kinds.get(OBJECTS)
    if kind is None or kinds.keys() & {BOXES, BOX_LABELS}:
        return None
    is_list = types.is_list(kind) and types.is_struct(kind.value_type)  # a struct of lists, or a list of structs
    struct = kind.value_type if is_list else kind
    parts = {field.name: field.type for field in struct} if types.is_struct(struct) else {}
    if not is_list:
        parts = {name: of.value_type for name, of in parts.items() if _is_list(of)}
    label = next((name for name in OBJECT_LABELS if name in parts), "")
    box = parts.get("bbox")
    if box is None or not label or not types.is_integer(parts[label]) or not _is_list(box):
        return None
    return (OBJECTS, label) if types.is_integer(box.value_type) or types.is_floating(box.value_type) else None


def _is_list(kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_fixed_size_list(kind) or types.is_large_list(kind))


def _with_feature(features: dict[str, Any], feature: str, kinds: dict[str, Any], fits: Any) -> list[str]:
    """Return the columns with a Hugging Face feature and an Arrow type that fits the feature."""
    known = {name: of for name, of in features.items() if isinstance(of, dict) and name in kinds}
    return [name for name, of in known.items() if of.get("_type") == feature and fits(kinds[name])]


def choose(found: Sequence[str], preferred: Sequence[str], what: str, warnings: list[str]) -> str | None:
    """Return the only item of ``found``, or the first item of ``preferred`` that is in ``found``; None without one.

    Items may differ from ``preferred`` in capital letters.
    """
    usual = (name for known in preferred for name in found if known in (name, name.lower()))
    chosen = found[0] if len(found) == 1 else next(usual, None)
    if len(found) > 1 and chosen is not None:
        other = next(name for name in found if name != chosen)
        way = f": LMDBDataset(place, target={other!r}) trains on another" * (what == "label")
        became = f"{chosen!r} became the {what}, and the others became fields"
        warnings.append(f"of the columns {quoted(found)}, {became}{way}")
    return chosen


def _is_bytes(kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def field_names(kind: Any) -> list[str]:
    """Return the names of a struct's fields. pyarrow before 18 has no StructType.names."""
    return [field.name for field in kind]


def _has_path(kind: Any) -> bool:
    return types.is_struct(kind) and "path" in field_names(kind) and types.is_string(kind.field("path").type)


def _may_be_image(kind: Any) -> bool:
    """Return whether a type may contain images: bytes, paths, or a struct of both as in Hugging Face's datasets."""
    if types.is_struct(kind):
        return "bytes" in field_names(kind) and _is_bytes(kind.field("bytes").type)
    return _is_bytes(kind) or types.is_string(kind)


def _is_text(kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _may_be_field(kind: Any) -> bool:
    """Return whether a record can hold the values of a type."""
    if types.is_struct(kind):
        return all(_may_be_field(field.type) for field in kind)
    if types.is_map(kind):
        return False
    # Only an extension type, such as Hugging Face's Array2D, has a storage_type. Only a list has a value_type.
    inner = getattr(kind, "storage_type", None) or getattr(kind, "value_type", None)
    return _may_be_field(inner) if inner else any(is_kept(kind) for is_kept in _FIELD_TYPES)


def _metadata(schema: Any, key: bytes, *path: str) -> dict[str, Any]:
    """Return an object in the metadata of a schema; {} if the metadata has no such object."""
    try:
        found = json.loads((schema.metadata or {})[key])
        json.dumps(found, ensure_ascii=False).encode()  # fails if a text has a lone surrogate
    except (KeyError, ValueError, RecursionError):
        return {}
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _strings(value: Any) -> list[str]:
    return [*map(str, value)] if isinstance(value, list) else []


# --- arrays -----------------------------------------------------------------------------------------------------------


class ArrayRule(NamedTuple):
    """Dtype and shape of the arrays in a column."""

    dtype: str
    shape: tuple[int | None, ...]  # None for an axis whose size differs between arrays

    def __str__(self) -> str:
        return f"an array of {self.dtype} with {len(self.shape)} axes"

    @property
    def type(self) -> Any:
        """Return the type of the column."""
        kind = pa.from_numpy_dtype(np.dtype(self.dtype))
        for _ in self.shape:
            kind = pa.list_(kind)
        return kind

    def fits(self, array: np.ndarray[Any, Any]) -> bool:
        """Return whether an array gets its shape back from nested lists.

        An empty list does not show the sizes of the inner axes, so the rule must give these sizes.
        """
        return 0 not in array.shape or None not in self.shape[array.shape.index(0) + 1 :]


def rule_of(array: np.ndarray[Any, Any]) -> ArrayRule:
    """Return the rule for one array; ValueError if nested lists cannot keep the array."""
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or not array.dtype.isnative:
        raise ValueError(f"is an array of {array.dtype}")
    if not array.flags.c_contiguous:
        raise ValueError("is an array in Fortran's order")
    return ArrayRule(array.dtype.name, array.shape)


def read_rule(value: Any, kind: Any) -> ArrayRule:
    """Return the rule in metadata for a column; ValueError if it is malformed or does not fit the column's type."""
    try:
        rule = ArrayRule(str(value["dtype"]), tuple(value["shape"]))
        sizes = [size for size in rule.shape if size is not None]
        if len(rule.shape) <= _MOST_AXES and all(type(size) is int and 0 <= size < _MOST for size in sizes):
            for _ in rule.shape:
                kind = kind.value_type if types.is_list(kind) else None
            if kind == pa.from_numpy_dtype(np.dtype(rule.dtype)):
                return rule
    except (LookupError, TypeError, pa.ArrowException):
        pass
    raise ValueError(f"{value!r:.99} does not describe its arrays")


def to_lists(arrays: Sequence[np.ndarray[Any, Any] | None], rule: ArrayRule) -> Any:
    """Return a column with arrays; None becomes null."""
    missing = np.array([array is None for array in arrays])
    empty = np.zeros((0,) * len(rule.shape), rule.dtype)
    filled = [empty if array is None else array for array in arrays]
    column = pa.array(np.concatenate([array.reshape(-1) for array in filled]), mask=None if rule.shape else missing)
    for axis in reversed(range(len(rule.shape))):
        lists = [math.prod(array.shape[:axis]) for array in filled]
        sizes = np.repeat([array.shape[axis] for array in filled], lists)
        offsets = pa.array(np.concatenate(([0], sizes)).cumsum(), pa.int32())
        column = pa.ListArray.from_arrays(offsets, column, mask=None if axis else pa.array(missing))
    return column


def from_lists(column: Any, rule: ArrayRule) -> Iterator[np.ndarray[Any, Any] | None]:
    """Yield the arrays in a column; ValueError if one of them does not have the shape of the rule."""
    for row in range(len(column)):
        values = column.slice(row, 1)
        if values.null_count:
            yield None
            continue
        shape: list[int] = []
        for size in rule.shape:
            found = {*pc.unique(pc.list_value_length(values)).to_pylist()} or {size}
            if len(found) > 1 or None in found or (size is not None and size not in found):
                raise ValueError(f"an array does not have the shape {rule.shape}")
            shape += found
            values = values.flatten()
        if values.null_count:
            raise ValueError("an array has empty values")
        yield values.to_numpy(zero_copy_only=False).reshape(shape)
