"""Find the image files behind datasets of Hugging Face and torchvision, to store files instead of decoded pixels.

This module imports neither library. It recognizes their datasets by attributes or by ``sys.modules``.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dbloader.errors import FieldError, ImageError, OptionError
from dbloader.ext.collecting.stored_records import is_exactly, is_loaded
from dbloader.ext.images.preview import shown_orientation
from dbloader.ext.sources.labels import IMAGE_NAMES, LABEL_NAMES
from dbloader.images.check import check_image
from dbloader.loading.prefetch import PrefetchLoader
from dbloader.records.manifest import CLASS_LISTS, FIELD_CLASSES, FILE_FIELDS, TARGET


def with_files(samples: Any, columns: dict[str, str], source: dict[str, Any], *, encode: bool) -> Any:
    """Return the samples. If a dataset can give the file of an image, replace the image by a dict (see `is_file`).

    For a Hugging Face dataset, add {column: field} to ``columns`` for each column that the store renames. Add the image
    fields and class names to ``source``, a part of the manifest. The returned copy of a dataset has its class names in
    the attribute ``classes``. With ``encode``, do not replace images, because they will be encoded again.
    """
    inner = partial(with_files, columns=columns, source=source, encode=encode)
    if isinstance(samples, PrefetchLoader):
        return inner(samples.wrapped_loader)
    if is_exactly(samples, "ConcatDataset"):
        return _changed(samples, datasets=[*map(inner, samples.datasets)])
    if is_exactly(samples, "Subset"):
        return _changed(samples, dataset=inner(samples.dataset))
    if is_loaded(samples, "torch.utils.data", "DataLoader"):
        keeps = encode or samples.batch_sampler is None  # batch_size=None: collate_fn runs, and may need decoded images
        return _changed(samples, dataset=inner(samples.dataset, encode=keeps))
    if is_loaded(samples, "torchvision.datasets.folder", "ImageFolder") and not encode:
        folder = sys.modules["torchvision.datasets.folder"]
        if (
            samples.transform is None
            and samples.loader in (folder.default_loader, folder.pil_loader)
            and type(samples).__getitem__ is folder.DatasetFolder.__getitem__
        ):
            return _changed(samples, loader=partial(_find_file, samples.root))
        _warn(f"its transform, loader or __getitem__ makes them: convert({str(samples.root)!r}, place)")
    is_table = hasattr(getattr(samples, "features", None), "arrow_schema")
    return _from_hugging_face(samples, columns, source, encode=encode) if is_table else samples


def _changed(value: Any, **attributes: Any) -> Any:
    """Return a copy with new attributes. Bypass ``__setattr__``, because a DataLoader refuses some new attributes."""
    value = copy.copy(value)
    vars(value).update(attributes)
    return value


class _FolderFile(dict[str, Any]):
    """A file of an ImageFolder. `read_file` does not warn about its EXIF orientation: ImageFolder itself ignores it."""


def _find_file(root: str, path: str) -> _FolderFile:
    file = Path(path)  # the file may be outside the root: from an absolute path, `read_file` keeps only the name
    name = file.relative_to(root) if file.is_relative_to(root) else file.absolute()
    return _FolderFile(bytes=file.read_bytes(), path=name.as_posix())


def _warn(why: str) -> None:
    warnings.warn(f"the dataset has image files, but its images are stored as {why} keeps the files", stacklevel=4)


def _from_hugging_face(dataset: Any, columns: dict[str, str], source: dict[str, Any], *, encode: bool) -> Any:
    from dbloader.ext.sources.arrow_columns import choose, named_parts  # imports pyarrow, as the dataset does

    kinds, notes = dataset.features.to_dict(), list[str]()
    types = {name: kind.get("_type") if isinstance(kind, dict) else None for name, kind in kinds.items()}
    images, classes = ([name for name in types if types[name] == kind] for kind in ("Image", "ClassLabel"))
    integers = [name for name in LABEL_NAMES if types.get(name) == "Value" and "int" in kinds[name]["dtype"]]
    image = choose(images, IMAGE_NAMES, "image", notes)
    label = "label" if "label" in kinds else choose(classes or integers[:1], (*LABEL_NAMES, *classes), "label", notes)
    if image is not None:
        columns["image"] = "image_"  # moves a column ``image`` aside, unless it has the images (see the next line)
    columns |= {name: field for name, field in ((image, "image"), (label, "label")) if name is not None}
    if label in classes:
        columns["label"] = "label"  # SampleEncoder then takes -1 as no label, as in convert
    inner = {name: _inner_of(kind) for name, kind in kinds.items()}
    lists = [name for name, kind in inner.items() if kind and not str(kind.get("dtype")).startswith("float")]
    if label is None and len(lists) == 1 and inner[lists[0]].get("_type") == "ClassLabel":
        label = lists[0]  # each label is a list of classes, as in convert
        classes, kinds[label] = lists, inner[label]
        columns[label] = source[TARGET] = CLASS_LISTS
    for path, of in (part for name in kinds if name != label for part in named_parts(kinds[name], name)):
        if source.setdefault(FIELD_CLASSES, {}).setdefault(path, of) != of:
            raise OptionError(f"two datasets have different class names for the field {path!r}: rename one column")
    for note in notes:
        warnings.warn(note, stacklevel=4)
    result = dataset
    if (getattr(dataset, "format", None) or {}).get("type") != "custom":
        if files := [name for name in images if name != image]:
            source[FILE_FIELDS] = [*source.get(FILE_FIELDS, ()), *files]
        for name in () if encode else images:
            if kinds[name].get("mode") in (None, "RGB"):  # for another mode, datasets must decode the image
                result = result.cast_column(name, type(dataset.features[name])(decode=False))
    elif not encode:
        _warn("its transform makes them: samples.with_format(None), or convert() after samples.save_to_disk(),")
    return _changed(result, classes=kinds[label]["names"] if label in classes else [])


def _inner_of(kind: Any) -> Any:
    """Return the description of the items of a list in Hugging Face's datasets; None if a feature is no list."""
    inner = kind[0] if isinstance(kind, list) and kind else kind.get("feature") if isinstance(kind, dict) else None
    return inner if isinstance(inner, dict) else None


def is_file(value: Any) -> bool:
    """Return whether a value is an image file as in Hugging Face's datasets: a dict of ``bytes`` and ``path``."""
    return isinstance(value, Mapping) and value.keys() == {"bytes", "path"}


def read_file(key: str, value: Mapping[str, Any]) -> tuple[bytes, str | None]:
    """Check that an image file decodes, and return its bytes and its name. Append a JPEG's missing end marker.

    Raises:
        FieldError: The file cannot be read.
        ImageError: The file is damaged, or is not an image.
    """
    data, path = value["bytes"], value["path"]
    try:
        if data is None:
            # fsspec, a dependency of datasets, also opens URLs, such as zip://a.jpg::https://…
            import fsspec  # type: ignore[import-untyped]

            with fsspec.open(path, "rb") as file:
                data = file.read()
        data = check_image(data, lambda _: None).data
    except (OSError, ImageError, TypeError, ValueError) as error:
        kind = type(error) if isinstance(error, ImageError) else FieldError
        raise kind(f"field {key!r}: its file {path or ''} cannot be read: {error}") from error
    if not isinstance(value, _FolderFile) and shown_orientation(data) > 1:
        what = "images are stored as in their files, but datasets shows them upright, by their EXIF"
        warnings.warn(f"{what}: read the store by a Decoder with exif_transpose=True", stacklevel=2)
    outside = path and (os.path.isabs(path) or "://" in path)  # noqa: PTH117 - a URL is no path
    return data, path.partition("::")[0].rpartition("/")[2] if outside else path or None
