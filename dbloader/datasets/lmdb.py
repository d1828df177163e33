"""A dataset of the images and labels of an LMDB store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dbloader._places import checked_path, is_remote
from dbloader.datasets.store import StoreDataset, checked_place
from dbloader.decoding.open import decode_pil
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping


class LMDBDataset(StoreDataset):
    """Makes samples from an LMDB store. Replaces torchvision's ImageFolder.

    Making a dataset opens the store, so a wrong place is an error at once. A process that gets the dataset by pickling
    or fork opens the store again at the first read. Threads may share a dataset. For each record, ``targets`` needs 8
    bytes of memory, ``names`` about 30, and ``samples`` about 40, but only after their first use.

    A sample is ``(image, label)``: the result of ``decode`` and ``transform``, and an int. A missing label is None,
    which torch cannot collate. With ``target``, or a target that the conversion stored, a sample is ``(image,
    target)``. With ``fields``, a sample is a dict of these fields.

    Args:
        place: Path of the store: an LMDB file, or a folder of shards; with ``cache``, also in object storage.
        transform: Called with the decoded image of each record that has one. A transform of albumentations gets an
            array, and the loader seeds its random numbers.
        target_transform: Called with the label or other target of each record that has one.
        decode: Called with the bytes of each image file. None keeps the bytes. Images that are stored as arrays are not
            decoded. The default returns an RGB PIL image, like ImageFolder. By default, the conversion checks images
            (``check="decode"``). From such a store, a JPEG is decoded only when its pixels are needed, and a crop
            decodes only a part (docs/transforms.md). All other images are decoded immediately, to find damage.
        transforms: Called with the image and the label, in place of ``transform`` and ``target_transform``. Returns
            both. With ``fields``, ``transforms`` gets the dict, and returns the sample. Without ``fields``, a
            transform of albumentations gets only the image, and leaves the label unchanged.
        target: Name of the target field, which contains a float, int, bool or text, several classes, or a file such as
            a mask. None means the target that the conversion stored, else the label. Several classes, such as the list
            ``[0, 2]``, become a float32 tensor with 0 or 1 for each class. Without ``fields``, a record without a
            target is an error. With ``fields``, the target must be one of the fields.
        fields: Names of the fields for a dict: ``"image"``, ``"label"``, ``"name"``, ``"index"``, ``"width"``,
            ``"height"``, ``"format"``, ``"damaged"``, ``"resized_from"``, and extra fields of the records. If a record
            lacks a field, its value is None. ``{"pixel_values": "image", "labels": "label"}`` renames fields. Masks and
            other image files in fields become PIL images of the file's mode, or bytes with ``decode=None``. A Decoder
            crops, resizes and mirrors these files and ``"boxes"`` like the image (docs/masks.md). Boxes outside the
            crop are dropped, with their rows in ``iscrowd``, ``difficult``, ``truncated`` and ``box_...`` fields.
        resize: How images of the default ``decode`` are resized. ``"exact"``: by Pillow. ``"fast"``: by torch; pixels
            differ from Pillow's by at most 2 levels. ``"scaled"``: like ``"fast"``, but JPEGs are first decoded at 1/2,
            1/4 or 1/8 of their size, never below the result's size; pixels differ more. None means ``"fast"`` for steps
            that `create_loader` fuses with the decoding, and ``"exact"`` for all other images.
        where: Select the records that this query finds, such as ``"score>0.5 (class:cat or class:dog)"``
            (docs/queries.md). Records keep the store's order. Index 0 is the first record found. The field ``"index"``
            is the index in the store.
        cache: Path of a folder on a local disk (not NFS), created if needed. dbloader copies whole shards there before
            it reads them. All processes of the machine may use the folder (docs/cache.md).
        cache_bytes: Limit for the bytes of shards in the cache. The shard that will be needed last is removed first.
        root: Another name of ``place``, for programs that use ImageFolder.

    Raises:
        StoreNotFoundError: Nothing is at the place.
        NotAStoreError: The place contains something else, or a store whose conversion is not finished.
        StoreVersionError: The store has a newer format.
        DamagedStoreError: The store is cut short or corrupted.
        OptionError: No record has one of the fields. No record has a label, and no fields were chosen. ``transforms``
            is given with another transform. ``resize`` has an unknown value, or is given with your own ``decode``.
            ``where`` is wrong. The cache is at the store's place, or smaller than a shard.
        TypeError: The place is not a path, ``fields`` are not names, or a transform or ``decode`` is not callable.
    """

    def __init__(
        self,
        place: str | os.PathLike[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        decode: Callable[[bytes], Any] | None = decode_pil,
        transforms: Callable[..., Any] | None = None,
        target: str | None = None,
        fields: Iterable[str] | Mapping[str, str] | None = None,
        resize: str | None = None,
        where: str | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        checked = checked_place(place, root, "the path of a store")
        if cache is None or not is_remote(checked):
            checked_path(checked)  # refuses places in MongoDB
        super().__init__(
            open_store(checked, cache=cache, cache_bytes=cache_bytes),
            transform,
            target_transform,
            decode=decode,
            transforms=transforms,
            target=target,
            fields=fields,
            resize=resize,
            where=where,
        )
