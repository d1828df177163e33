"""Writing a store from samples that are in memory already: what a dataset, a DataLoader or a generator yields."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from dbloader.errors import DBLoaderError, FieldError, ImageError, OptionError
from dbloader.records import encode
from dbloader.samples import Batch, Form, is_of
from dbloader.stores import Store, create_store

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterator, Sequence

    from dbloader.manifest import Manifest
    from dbloader.records import Record


def write_store(
    samples: Any,
    place: str | os.PathLike[str],
    *,
    fields: Sequence[str] = ("image", "label"),
    classes: Sequence[str] | None = None,
    image_format: str = "PNG",
    quality: int | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Writes a store of samples and gives its manifest.

    Nothing is at the place until all samples are in; an error leaves nothing new there. No samples make an empty
    store, but overwrite none.

    Of a DataLoader, the samples are taken in its order, made by its workers, before they are collated: what a batch
    is made of is stored, not the batch, so that samples of different sizes fit too. Its ``collate_fn`` is not called
    (but with ``batch_size=None``, where it makes samples); a DataLoader over the store with the same one gives the
    same batches.

    Args:
        samples: An iterable, a map-style dataset, a torch DataLoader (or a PrefetchLoader of one) or a Store. A sample
            is a dict of field names, a named tuple or dataclass with fields of those names, a tuple or list in the
            order of ``fields``, a Record, or an image alone (a PIL image, tensor, array or the bytes of an image
            file). Tensors and arrays are stored as arrays of their dtype and shape; those of one number, and numpy
            scalars, as the int, float or bool that has their dtype, if one has.
        place: Place of the store.
        fields: Names of a tuple's items; a tuple may lack the last ones. ``image``, ``label`` (an int) and ``name`` (a
            str) have a meaning of their own, as have ``width``, ``height``, ``format``, ``damaged`` and
            ``resized_from``; all others are kept beside them.
        classes: Class names in the order of their labels, () for labels without names; default those of the dataset,
            if it has such.
        image_format: Pillow's name of the format in which the field ``image`` is encoded if it is a PIL image: without
            loss in ``"PNG"``. PIL images in other fields, such as masks, are always encoded in PNG.
        quality: Quality in JPEG, WebP or AVIF, 1 to 100; default Pillow's.
        overwrite: Replace the store at the place, once the new one is finished.

    Raises:
        FieldError: A sample holds what a record cannot, or a label that is none of the classes; the message says which
            sample and field.
        DamagedImageError: A PIL image does not decode.
        OptionError: An option is out of its range, or the samples are not of a kind that can be iterated, or there are
            none and ``overwrite`` is given.
        StoreError: The place cannot be written, or is taken.
    """
    form = Form.of(fields, image_format, quality)
    if isinstance(classes, str):
        raise OptionError(f"classes must be several names, such as ({classes!r},), got the one str {classes!r}")
    class_names = _classes(samples) if classes is None else tuple(classes)
    with create_store(place, overwrite=overwrite) as writer, closing(_records(samples, form)) as records:
        for number, record in enumerate(records):
            try:
                writer.write([encode(_checked(record, class_names))])
            except (FieldError, ImageError) as error:
                raise type(error)(f"sample {number}: {error}") from error
        if overwrite and not writer.length:
            raise OptionError(
                f"there are no samples to overwrite {writer.place} with (an iterator may have been used up): "
                "leave overwrite out if an empty store is wanted"
            )
        return writer.finish(classes=class_names, source={"kind": "samples"})


def _records(samples: Any, form: Form) -> Generator[Record | DBLoaderError, None, None]:
    while is_of(samples, "dbloader.prefetch", "PrefetchLoader"):
        samples = samples._loader
    if is_of(samples, "torch.utils.data", "DataLoader"):
        yield from _loaded(samples, form)
    else:
        for sample in _each(samples):
            yield form.record_or_error(sample)


def _loaded(loader: Any, form: Form) -> Iterator[Record | DBLoaderError]:
    kind = type(loader).__name__
    is_batched = loader.batch_sampler is not None
    loader = copy.copy(loader)
    loader._iterator = None  # persistent workers are the original's, and have its collate_fn
    if is_batched:
        loader.collate_fn = form
    iterator = iter(loader)
    try:
        for item in iterator:
            if not is_batched:
                yield form.record_or_error(item)
            elif isinstance(item, Batch):
                yield from item.records
            else:
                raise OptionError(
                    f"this {kind} gives batches that its collate_fn has not made, which cannot be taken apart: "
                    "give its dataset, or a torch DataLoader",
                )
    finally:
        if hasattr(iterator, "_shutdown_workers"):
            # An iterator that raised lives on, with its workers, in a cycle with its error.
            iterator._shutdown_workers()


def _each(samples: Any) -> Iterator[Any]:
    if hasattr(samples, "__iter__") and not isinstance(samples, (str, bytes, Mapping)):
        yield from samples
    elif hasattr(samples, "__getitem__") and hasattr(samples, "__len__") and not hasattr(samples, "__iter__"):
        # A map-style dataset: Python would iterate it until an IndexError, which not every dataset raises.
        for index in range(len(samples)):
            yield samples[index]
    else:
        raise OptionError(
            f"samples must be an iterable of samples, a dataset or a DataLoader, got a {type(samples).__name__}: "
            "put a single sample into a list, and give the path of a folder to convert()",
        )


def _checked(record: Record | DBLoaderError, classes: Sequence[str]) -> Record:
    if isinstance(record, DBLoaderError):
        raise record
    if classes and record.label is not None and not 0 <= record.label < len(classes):
        # finish() would say so too, but only after all samples.
        raise FieldError(
            f"label {record.label} is not one of the {len(classes)} classes (0 to {len(classes) - 1}): "
            "give the names of all, or classes=() to store labels without names",
        )
    return record


def _classes(samples: Any) -> tuple[str, ...]:
    """Gives the class names of a store, a dataset, or the dataset in a DataLoader or Subset."""
    if isinstance(samples, Store):
        return samples.manifest.classes
    names = getattr(samples, "classes", None)
    if isinstance(names, (tuple, list)) and names and all(isinstance(name, str) for name in names):
        return tuple(names)
    if is_of(samples, "torch.utils.data", "ConcatDataset"):
        parts = {_classes(part) for part in samples.datasets}
        return parts.pop() if len(parts) == 1 else ()
    inner = getattr(samples, "dataset", None)
    return () if inner is None else _classes(inner)
