"""Writing a store from samples that are in memory already: what a dataset, a DataLoader or a generator yields."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import short_repr
from dbloader.conversion.sample_encoder import Batch, SampleEncoder
from dbloader.conversion.stored_records import classes_of, comes_in_parts, each_sample, has_store, is_of, source_of
from dbloader.errors import DBLoaderError, FieldError, ImageError, NotAnImageError, OptionError
from dbloader.images.info import read_facts
from dbloader.images.pillow import array_depth
from dbloader.records.record import encode
from dbloader.stores.open import create_store

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterator, Sequence

    from dbloader.records.manifest import Manifest
    from dbloader.records.record import Record

_NAMES = ("image", "label")


def write_store(
    samples: Any,
    place: str | os.PathLike[str],
    *,
    fields: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    image_format: str | None = None,
    quality: int | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Write a store of samples and return its manifest.

    Nothing is at the place until all samples are in; an error leaves nothing new there. No samples make an empty
    store, but overwrite none.

    The records of a store are copied as they are: the bytes of their files, their names, labels and further fields.
    They are those of a Store, of an LMDBDataset or MongoDataset without a ``transform``, ``target_transform`` or
    ``decode``, and of torch's Subsets and ConcatDatasets of these. Of a dataset with ``fields``, only these are copied.
    All other datasets give samples, and so do these, but no Store, if ``image_format`` or ``quality`` is given, or
    ``fields`` other than the default: their images are then decoded and encoded again.

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
        fields: Names of a tuple's items, default ``("image", "label")``; a tuple may lack the last ones. ``image``,
            ``label`` (an int) and ``name`` (a str) have a meaning of their own, as have ``width``, ``height``,
            ``format``, ``damaged`` and ``resized_from``; all others are kept beside them.
        classes: Class names in the order of their labels, () for labels without names; default those of the dataset,
            if it has such. Labels are not changed.
        image_format: Pillow's name of the format in which the field ``image`` is encoded if it is a PIL image, default
            ``"PNG"``, which is without loss. PIL images in other fields, such as masks, are always encoded in PNG.
        quality: Quality in JPEG, WebP or AVIF, 1 to 100; default Pillow's.
        overwrite: Replace the store at the place, once the new one is finished.

    Raises:
        FieldError: A sample holds what a record cannot, or a label that is none of the classes; the message says which
            sample and field.
        DamagedImageError: A PIL image does not decode.
        OptionError: An option is out of its range, or the samples are not of a kind that can be iterated, or there are
            none and ``overwrite`` is given; or datasets that are chained have different classes; or a Store is to be
            encoded again.
        StoreError: The place cannot be written, or is taken.
    """
    names = _NAMES if fields is None else fields
    form = SampleEncoder.of(names, "PNG" if image_format is None else image_format, quality)
    as_records = image_format is None and quality is None and form.fields == _NAMES
    if not as_records and has_store(samples):
        raise OptionError(
            "the records of a Store are stored as they are: leave fields, image_format and quality out, or give a "
            "dataset, such as LMDBDataset(place)"
        )
    if isinstance(classes, str):
        raise OptionError(f"classes must be several names, such as ({classes!r},), got the one str {classes!r}")
    class_names = classes_of(samples) if classes is None else tuple(classes)
    if not all(isinstance(name, str) for name in class_names):
        raise OptionError(f"classes must be names, such as ('cat', 'dog'), got {short_repr(class_names)}")
    source = source_of(samples) if as_records else {"kind": "samples"}
    with (
        create_store(place, overwrite=overwrite) as writer,
        closing(_records(samples, form, as_records=as_records)) as records,
    ):
        for number, record in enumerate(records):
            try:
                checked = _checked(record, class_names)
                writer.write([encode(checked)], depths=_depths(checked))
            except (FieldError, ImageError) as error:
                raise type(error)(f"sample {number}: {error}") from error
        if overwrite and not writer.length:
            raise OptionError(
                f"there are no samples to overwrite {writer.place} with (an iterator may have been used up): "
                "leave overwrite out if an empty store is wanted"
            )
        manifest = writer.finish(classes=class_names, source=source)
    with suppress(OSError):
        writer.report_path.unlink()  # of a conversion whose store was there before
    return manifest


def _records(samples: Any, form: SampleEncoder, *, as_records: bool) -> Generator[Record | DBLoaderError, None, None]:
    while is_of(samples, "dbloader.loading.prefetch", "PrefetchLoader"):
        samples = samples._loader
    if is_of(samples, "dbloader.loading.threads", "ThreadLoader") or is_of(
        samples, "dbloader.loading.processes", "ProcessLoader"
    ):
        raise OptionError("a loader that create_loader made gives whole batches, not samples: give its dataset instead")
    if is_of(samples, "torch.utils.data", "DataLoader"):
        yield from _loaded(samples, form)
    else:
        for sample in each_sample(samples) if as_records and comes_in_parts(samples) else _each(samples):
            yield form.record_or_error(sample)


def _loaded(loader: Any, form: SampleEncoder) -> Iterator[Record | DBLoaderError]:
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
            f"samples must be an iterable of samples, a dataset or a DataLoader, got {type(samples).__name__}: "
            "put a single sample into a list, and give the path of a folder to convert()",
        )


def _depths(record: Record) -> dict[str, int]:
    """Return how deep the image of a record is, to be counted."""
    image = record.image
    if isinstance(image, np.ndarray):
        return {array_depth(image): 1}
    with suppress(NotAnImageError):
        return {} if image is None else {read_facts(bytes(image)).depth: 1}
    return {}


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
