"""Which column of a table is the image, which one the label, and how the others become fields."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow import types

from dbloader.errors import FieldError, SourceError
from dbloader.records.record import checked_field_name
from dbloader.sources.arrow_arrays import read_rule
from dbloader.sources.boxes import BOXES
from dbloader.sources.boxes import LABELS as BOX_LABELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo", "image_bytes", "bytes")
LABELS = ("label", "labels", "class", "target", "cls")
OBJECTS = "objects"
"""The column of detection's data sets, such as CPPE-5: ``bbox`` and ``category`` of the objects in an image."""

OWN = b"dbloader"
"""Key of a schema's metadata in what dbloader wrote: nothing about its columns has to be guessed."""

_KEPT = (
    types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_string, types.is_large_string,
    types.is_binary, types.is_large_binary, types.is_fixed_size_binary,
)  # fmt: skip


class Columns(NamedTuple):
    """What the columns of a table are."""

    image: str
    path: str | None  # column of the image's path, such as "image.path"; None without one
    label: str | None
    classes: tuple[str, ...]  # names of a ClassLabel
    fields: dict[str, tuple[str, Any]]  # by column: the name of the field, and its type, or the rule of its arrays
    absent: frozenset[str]  # columns in which null says that the record has no such field
    is_own: bool
    files: tuple[str, ...]  # columns of further images, whose bytes are the fields
    field_classes: dict[str, list[str]]  # as of a Manifest
    objects: tuple[str, str] | None  # column of the objects in an image, and its part with their classes
    warnings: tuple[str, ...]


def find_columns(schema: Any, where: str, file_fields: Sequence[str] = ()) -> Columns:
    """Return what the columns of a schema are; SourceError if the image is not among them, or not for certain.

    Columns of further images are those of ``file_fields``, those that dbloader wrote, and Hugging Face's Images.
    """
    kinds = {field.name: field.type for field in schema}
    if len(kinds) < len(schema.names):
        raise SourceError(f"{where}: two of its columns have the same name: rename one")
    is_own = OWN in (schema.metadata or {}) and _may_be_image(kinds.get("image", pa.null()))
    features = _metadata(schema, b"huggingface", "info", "features")
    warnings: list[str] = []

    images = ["image"] if is_own else _of_feature(features, "Image", kinds, _may_be_image)
    images = images or [name for name, kind in kinds.items() if types.is_struct(kind) and _may_be_image(kind)]
    images = images or [name for name, kind in kinds.items() if _is_bytes(kind)]
    images = images or [name for name in IMAGES if types.is_string(kinds.get(name, pa.null()))]
    image = _choose(images, IMAGES, "image", warnings)
    said = _metadata(schema, OWN).get("files") or [] if is_own else _of_feature(features, "Image", kinds, _may_be_image)
    further = (*file_fields, *(said if isinstance(said, list) else []))
    files = tuple(name for name, kind in kinds.items() if name in further and name != image and _is_file(kind))
    if image is None:
        which = f"{_some(images)} may each be it" if images else f"it has {_some([*kinds])}"
        raise SourceError(f"{where}: no column is the image for certain; {which}: call it 'image'")

    classes = _of_feature(features, "ClassLabel", kinds, types.is_integer)
    by_name = [name for name in LABELS if name in kinds and name != image and _may_be_label(kinds[name])]
    labels = [name for name in ("label",) if name in kinds] if is_own else classes or by_name[:1]
    label = _choose(labels, (*LABELS, *labels), "label", warnings)
    names = features[label].get("names") if label in classes else None

    fields: dict[str, tuple[str, Any]] = {}
    arrays = _metadata(schema, OWN, "arrays")
    for name, kind in kinds.items():
        if name in (image, label):
            continue
        if name in arrays:
            try:
                fields[name] = name, read_rule(arrays[name], kind)
            except ValueError as error:
                raise SourceError(f"{where}: its metadata cannot be read: column {name!r}: {error}") from error
            continue
        if not _may_be_field(kind):
            warnings.append(
                f"the column {name!r} is left out: no field has the type {kind}; write it as text to keep it"
            )
            continue
        fields[name] = name if is_own else _field_name(name, kinds), kind
        if fields[name][0] != name:
            warnings.append(f"the column {name!r} became the field {fields[name][0]!r}: no field may have its name")
    absent = _metadata(schema, OWN).get("absent")
    field_classes = {
        part: of for name, (field, _) in fields.items() for part, of in _named_parts(features.get(name), field)
    }
    classes_of = names if isinstance(names, list) else []
    objects = None if is_own or label else _find_objects(kinds)
    if objects is not None and objects[0] in fields:
        classes_of = field_classes.pop(".".join(objects), [])
        warnings.append(
            f"the column {objects[0]!r} became 'boxes' and 'box_labels': its 'bbox' was read as x, y, width, height in "
            "pixels, as in COCO; if it is another, rename the column, which keeps it as it is"
        )
    return Columns(
        image,
        image if types.is_string(kinds[image]) else f"{image}.path" if _has_path(kinds[image]) else None,
        label,
        tuple(map(str, classes_of)),
        fields,
        frozenset(map(str, absent)) if isinstance(absent, list) else frozenset(),
        is_own,
        files,
        field_classes,
        objects,
        tuple(warnings),
    )


def _named_parts(feature: Any, path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the parts of a feature of Hugging Face that are a ClassLabel, and the names of their classes."""
    if isinstance(feature, list):
        for inner in feature[:1]:
            yield from _named_parts(inner, path)
    elif isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
        names = feature.get("names")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            yield path, names
    elif isinstance(feature, dict) and isinstance(feature.get("_type"), str):  # a Sequence or List
        yield from _named_parts(feature.get("feature"), path)
    elif isinstance(feature, dict):
        for name, inner in feature.items():
            yield from _named_parts(inner, f"{path}.{name}")


def _find_objects(kinds: dict[str, Any]) -> tuple[str, str] | None:
    """Return the column with the boxes of objects, and its part with their classes; None if no column is one."""
    kind = kinds.get(OBJECTS)
    if kind is None or kinds.keys() & {BOXES, BOX_LABELS}:
        return None
    is_list = types.is_list(kind) and types.is_struct(kind.value_type)  # a struct of lists, or a list of structs
    struct = kind.value_type if is_list else kind
    parts = {field.name: field.type for field in struct} if types.is_struct(struct) else {}
    if not is_list:
        parts = {name: of.value_type for name, of in parts.items() if _is_list(of)}
    label = next((name for name in ("category", "categories", "label", "labels") if name in parts), "")
    box = parts.get("bbox")
    if box is None or not label or not types.is_integer(parts[label]) or not _is_list(box):
        return None
    return (OBJECTS, label) if types.is_integer(box.value_type) or types.is_floating(box.value_type) else None


def _is_list(kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_fixed_size_list(kind) or types.is_large_list(kind))


def _of_feature(features: dict[str, Any], feature: str, kinds: dict[str, Any], fits: Any) -> list[str]:
    """Return the columns that Hugging Face's features say to be of a kind, if their types fit."""
    said = {name: of for name, of in features.items() if isinstance(of, dict) and name in kinds}
    return [name for name, of in said.items() if of.get("_type") == feature and fits(kinds[name])]


def _choose(found: Sequence[str], preferred: Sequence[str], what: str, warnings: list[str]) -> str | None:
    """Return the only one of some columns, or the first of the preferred ones; None without it."""
    chosen = found[0] if len(found) == 1 else next((name for name in preferred if name in found), None)
    if len(found) > 1 and chosen is not None:
        warnings.append(f"of the columns {_some(found)}, {chosen!r} became the {what}, and the others became fields")
    return chosen


def _is_bytes(kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _has_path(kind: Any) -> bool:
    return types.is_struct(kind) and "path" in kind.names and types.is_string(kind.field("path").type)


def _may_be_image(kind: Any) -> bool:
    """Return whether values of a type may be bytes, a path, or both in a struct, as Hugging Face has them."""
    if types.is_struct(kind):
        return "bytes" in kind.names and _is_bytes(kind.field("bytes").type)
    return _is_bytes(kind) or types.is_string(kind)


def _is_file(kind: Any) -> bool:
    return _has_path(kind) and _may_be_image(kind)


def _may_be_label(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind))


def _may_be_field(kind: Any) -> bool:
    """Return whether a record can hold the values of a type."""
    if types.is_struct(kind):
        return all(_may_be_field(field.type) for field in kind)
    inner = getattr(kind, "storage_type", None) or getattr(
        kind, "value_type", None
    )  # of a list, or Array2D of datasets
    return not types.is_map(kind) and (_may_be_field(inner) if inner else any(is_kept(kind) for is_kept in _KEPT))


def _field_name(column: str, others: dict[str, Any]) -> str:
    """Return the name of a column's field: the column's, or one like it if no field may have that."""
    try:
        return checked_field_name(column)
    except FieldError:
        name = column.translate(dict.fromkeys(map(ord, ".$\0"), "_")) + "_"
        while name in others:
            name += "_"
        return name


def _metadata(schema: Any, key: bytes, *path: str) -> dict[str, Any]:
    """Return an object in the metadata of a schema; an empty one if it is not there."""
    try:
        found = json.loads((schema.metadata or {})[key])
        json.dumps(found, ensure_ascii=False).encode()  # no lone surrogates
    except (KeyError, ValueError, RecursionError):
        return {}
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:10])) + (", …" if len(names) > 10 else "")
