"""Write the samples of a dataset, a DataLoader or a generator into a store."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dbloader._describe import listed, short_repr
from dbloader._options import checked_flag, checked_names
from dbloader.errors import DBLoaderError, FieldError, ImageError, NotAnImageError, OptionError
from dbloader.ext.collecting.encoded_files import with_files
from dbloader.ext.collecting.sample_targets import Target
from dbloader.ext.collecting.sample_to_record import RecordBatch, SampleEncoder
from dbloader.ext.collecting.stored_records import (
    contains_store,
    divide,
    find_classes,
    find_stores,
    is_divisible,
    is_loaded,
    source_of,
)
from dbloader.images.info import count_depth, read_facts
from dbloader.loading.prefetch import PrefetchLoader
from dbloader.records.manifest import FILE_FIELDS, TARGET
from dbloader.records.record import checked_file_fields, encode
from dbloader.stores.open import check_destination, create_store

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterator, Sequence

    from dbloader.ext.collecting.sample_to_record import Made
    from dbloader.records.manifest import Manifest
    from dbloader.records.record import Record

_NAMES = ("image", "label")


def write_store(
    samples: Any,
    place: str | os.PathLike[str],
    *,
    fields: Sequence[str] | None = None,
    file_fields: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    image_format: str | None = None,
    quality: int | None = None,
    overwrite: bool = False,
    require_images: bool = True,
) -> Manifest:
    """Write a store of samples and return its manifest.

    The store appears at the place when all samples are written. After an error, the place is unchanged. Without
    samples, the result is an empty store, which never replaces another store.

    The samples of a Store are records. Samples of an LMDBDataset or MongoDataset without ``transform``,
    ``target_transform`` and ``decode`` are records too, also inside torch's Subset or ConcatDataset. The image files,
    names, labels and extra fields of records are copied unchanged. A dataset that was opened with ``fields`` gives only
    these fields. With the arguments ``image_format``, ``quality`` or ``fields``, the images of an LMDBDataset
    or MongoDataset are encoded again. The images of a Store cannot be encoded again.

    The image files behind a Hugging Face dataset or torchvision's ImageFolder are stored unchanged, after a check that
    they decode. Their EXIF orientation is not applied. With ``image_format``, ``quality``, a dataset's transform or an
    ImageFolder's own ``loader``, the images are encoded. Images of all other samples are encoded too.

    The workers of a DataLoader make its samples. The samples are stored in the order of the DataLoader. Samples
    are not collated, so their sizes may differ. ``collate_fn`` is called only if ``batch_size`` is None: torch then
    calls it for each sample.

    Args:
        samples: An iterable, a map-style dataset, a torch DataLoader, a PrefetchLoader of a DataLoader, or a Store. A
            sample may be a Record, a dict, named tuple or dataclass with names of fields, or a tuple or list in the
            order of ``fields``. It may also be an image: a PIL image, tensor, array or the bytes of an image file.
            Tensors and arrays are stored as arrays of their dtype and shape. Single numbers (numpy scalars, and tensors
            or arrays without dimensions) of dtype int64, float64 or bool become an int, float or bool. ``label`` may
            also be another target, of the same kind in all samples. A float is stored in the field ``target``. A tensor
            or array with 0 or 1 for each of ``classes`` becomes the list ``labels``. A PIL image becomes the file field
            ``mask``. A pair of a PIL image and a label gives both. A dict of VOCDetection becomes boxes. Datasets of
            the store return the float, the zeros and ones, or the mask as the target.
        place: Place of the new store.
        fields: Field names of a tuple's items, default ``("image", "label")``; a tuple may lack its last items.
            ``image``, ``label`` (an int, or the name of a class), ``name`` (a str), ``width``, ``height``, ``format``,
            ``damaged`` and ``resized_from`` are the standard fields of a record. All others are stored as extra
            fields.
        file_fields: Names of extra fields whose values are image files, such as ``("mask", "depth")``: PIL images,
            the bytes of image files, or None. Datasets decode these fields like the image.
        classes: Class names in the order of their labels; () for labels without names. The default is the dataset's
            class names, or the sorted names in a VOCDetection. Labels that are ints are not changed. If labels are
            names, give all names here, because records are written before the names in later samples are known.
        image_format: Pillow's name of the format for a PIL image in the field ``image``, default ``"PNG"``, which is
            lossless. PIL images in other fields, such as masks, are always encoded in PNG.
        quality: Quality in JPEG, WebP or AVIF, from 1 to 100. By default, Pillow chooses the quality.
        overwrite: Replace the store at the place when the new store is finished.
        require_images: Whether at least one sample must have an image. Records of stores need no images. If True,
            a sample without ``image`` may have its image in a field with another usual name, such as ``img``. The first
            sample with an image decides the name of the field.

    Raises:
        FieldError: A sample has a value that a record cannot hold. Or its label is the name of no class, or of several
            classes. Or it is unclear which field is the image. Or earlier samples have the image in another field. Or
            one of ``file_fields`` is not an image file. The message names the sample and the field.
        DamagedImageError: An image does not decode.
        TypeError: ``quality``, ``overwrite`` or ``require_images`` has the wrong type.
        OptionError: An option is out of its range. Or the samples cannot be iterated, or are read from the store at the
            place. Or there are no samples, but ``overwrite`` is given. Or no sample has an image, or several columns of
            a Hugging Face dataset may be the image. Or concatenated datasets have different classes. Or images of a
            Store would be encoded again.
        StoreError: The place cannot be written, or already has a store.
    """
    names = _NAMES if fields is None else fields
    encoder = SampleEncoder.of(names, image_format, quality)
    as_records = image_format is None and quality is None and encoder.fields == _NAMES
    if not as_records and contains_store(samples):
        raise OptionError(
            "the records of a Store are copied unchanged: leave out fields, image_format and quality, or give a "
            "dataset, such as LMDBDataset(place)"
        )
    check_destination(place, find_stores(samples))
    source: dict[str, Any] = source_of(samples) if as_records else {"kind": "samples"}
    samples = with_files(samples, encoder.columns, source, encode=(image_format, quality) != (None, None))
    needs_image = checked_flag("require_images", require_images) and source["kind"] != "records"
    if needs_image and source.get(FILE_FIELDS) and "image" not in encoder.columns.values():
        raise OptionError(f"which column is the image? It may be any of {listed(source[FILE_FIELDS])}: call it 'image'")
    class_names = find_classes(samples) if classes is None else checked_names("classes", classes, "('cat', 'dog')")
    numbers = {name: label for label, name in enumerate(class_names)}
    if files := [*dict.fromkeys([*source.get(FILE_FIELDS, ()), *checked_file_fields(file_fields)])]:
        source[FILE_FIELDS] = files
    encoder = replace(encoder, needs_image=needs_image, files=tuple(files), classes=tuple(class_names))
    with (
        create_store(place, overwrite=overwrite) as writer,
        closing(_records(samples, encoder, as_records=as_records)) as records,
    ):
        image_field: str | None = None
        target = Target({})
        for number, made in enumerate(records):
            try:
                record, image_field, target = _unpack(made, image_field, target)
                checked = _checked(record, class_names, numbers)
                _check_files(checked, files)
                needs_image = needs_image and checked.image is None
                writer.write([encode(checked)], depths=count_depth(checked.image))
            except (FieldError, ImageError) as error:
                raise type(error)(f"sample {number}: {error}") from error
        if needs_image and writer.length:
            raise OptionError(
                "no sample has an image, so nothing is stored: call the field of the image 'image', or pass "
                "require_images=False to store samples without images"
            )
        if overwrite and not writer.length:
            raise OptionError(
                f"there are no samples (was the iterator used before?), so {writer.place} is not overwritten: to make "
                "an empty store, name another place and leave out overwrite"
            )
        if target.field is not None:
            source[TARGET] = target.field
        if target.files:
            source[FILE_FIELDS] = [*source.get(FILE_FIELDS, ()), *target.files]
        return writer.finish(classes=class_names, source=source)


def _records(samples: Any, encoder: SampleEncoder, *, as_records: bool) -> Generator[Made, None, None]:
    while isinstance(samples, PrefetchLoader):
        samples = samples.wrapped_loader
    if is_loaded(samples, "dbloader.loading.threads", "ThreadLoader"):
        raise OptionError("a loader of create_loader returns whole batches, not samples: give its dataset instead")
    if is_loaded(samples, "torch.utils.data", "DataLoader"):
        yield from _loaded(samples, encoder)
    else:
        for sample in divide(samples) if as_records and is_divisible(samples) else _each(samples):
            yield encoder.record_or_error(sample)


def _loaded(loader: Any, encoder: SampleEncoder) -> Iterator[Made]:
    kind = type(loader).__name__
    is_batched = loader.batch_sampler is not None
    loader = copy.copy(loader)
    # Start new workers: persistent workers keep the old collate_fn. DataLoader.__setattr__ refuses this attribute.
    vars(loader)["persistent_workers"] = False
    if is_batched:
        loader.collate_fn = encoder
    iterator = iter(loader)
    try:
        for item in iterator:
            if not is_batched:
                yield encoder.record_or_error(item)
            elif isinstance(item, RecordBatch):
                yield from item.records
            else:
                raise OptionError(
                    f"this {kind} does not use its collate_fn, so its batches cannot be divided into samples: "
                    "give its dataset, or a torch DataLoader"
                )
    finally:
        if hasattr(iterator, "_shutdown_workers"):
            # After an error, the traceback would keep the workers alive. torch has no public method that ends them.
            iterator._shutdown_workers()


def _each(samples: Any) -> Iterator[Any]:
    if hasattr(samples, "__iter__") and not isinstance(samples, (str, bytes, Mapping)):
        yield from samples
    elif hasattr(samples, "__getitem__") and hasattr(samples, "__len__") and not hasattr(samples, "__iter__"):
        # Python's own iteration would end only at an IndexError, which not every map-style dataset raises.
        for index in range(len(samples)):
            yield samples[index]
    else:
        raise OptionError(
            f"samples must be an iterable of samples, a dataset or a DataLoader, got {type(samples).__name__}: "
            "put a single sample into a list, choose a dataset, such as samples['train'], from a dict of datasets, or "
            "convert a folder of images by convert()"
        )


def _check_files(record: Record, names: Sequence[str]) -> None:
    """Raise FieldError if a value in ``file_fields`` is not an image file."""
    for name in names:
        value = record.fields.get(name)
        if value is None:
            continue
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise FieldError(
                f"field {name!r} is in file_fields, so it must be a PIL image or the bytes of an image file, got "
                f"{short_repr(value)}"
            )
        try:
            read_facts(bytes(value))
        except NotAnImageError as error:
            raise FieldError(f"field {name!r} is in file_fields, but {error}") from error


def _unpack(made: Made, before: str | None, target: Target) -> tuple[Record, str | None, Target]:
    """Return a record, the field that has the images, and the target.

    ``before`` is the field of the image in earlier samples, None if unknown. ``target`` is a target of earlier samples.

    The field must stay the same: if a sample lacks ``image``, its thumbnail ``img`` must not become its image.
    """
    if isinstance(made, DBLoaderError):
        raise made
    record, found, own = made
    if None not in (before, found) and found != before:
        raise FieldError(
            f"its image is in the field {found!r}, but earlier samples have it in {before!r}: call the field "
            "'image' in all samples, and give 'image': None if a sample has no image"
        )
    if own is not None and None not in (own.kind, target.kind) and own.kind != target.kind:
        raise FieldError(
            f"field 'label' is of the kind {own.kind}, but of the kind {target.kind} in earlier samples: give the same "
            "kind in all samples, such as float(label)"
        )
    return record, before or found, target if own is None or own.kind is None else own


def _checked(record: Record, classes: Sequence[str], numbers: Mapping[str, int]) -> Record:
    label: Any = record.label
    if isinstance(label, str):
        if label not in numbers:
            what = "is none of the classes: give all names in the order of their labels (classes=)"
            raise FieldError(f"label {short_repr(label)} {what}, or put the text into another field")
        if len(numbers) < len(classes) and classes.count(label) > 1:
            raise FieldError(f"label {short_repr(label)} is the name of several classes: give labels as ints")
        record = replace(record, label=numbers[label])
    if classes and record.label is not None and not 0 <= record.label < len(classes):
        # Writer.finish also checks labels, but only after all samples are written.
        raise FieldError(
            f"label {record.label} is none of the classes (0 to {len(classes) - 1}): "
            "give names for all labels, or classes=() to store labels without names"
        )
    return record
