"""The images and labels of an LMDB store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dbloader.caching.store import with_cache
from dbloader.datasets.store import StoreDataset, checked_place
from dbloader.decoding.open import decode_pil
from dbloader.remote.places import is_remote
from dbloader.stores.lmdb.store import LMDBStore

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping


class LMDBDataset(StoreDataset):
    """The images and labels of an LMDB store, in place of torchvision's ImageFolder.

    It opens the store when it is made, so a wrong place is found at once. Each process that gets it, by pickling or
    fork, opens the store for itself at its first read. Threads may share it. Memory does not grow with the number of
    records, except for ``targets``, ``names`` and ``samples``: 8, about 30 and about 40 bytes a record, once used.

    A sample is ``(image, label)``: the image from ``decode`` and ``transform``, and an int; None for a record without a
    label, which torch cannot collate. With ``fields`` it is a dict of those fields.

    Args:
        place: Path of the store: an LMDB file, or a folder of shards; with a cache also its place in object storage.
        transform: Called with each decoded image, if there is one. A transform of albumentations gets it as an array;
            what it draws is decided by the loader's random numbers.
        target_transform: Called with each label, if there is one.
        decode: Called with the bytes of each image file; None gives the bytes themselves. An image that was stored as
            an array is given as it is. The default gives an RGB PIL image, as ImageFolder does. If conversion decoded
            the images (its default), a JPEG is decoded when its pixels are needed, and a crop decodes only what it
            takes (docs/transforms.md). All other images are decoded at once, so that damage is raised here.
        transforms: Called with the whole sample, if given: with image and label, of which it returns new ones, or with
            the dict, in place of which it returns the sample. It takes the place of the other two transforms. Of a
            pair, a transform of albumentations gets the image.
        fields: Names of the fields for a dict: ``"image"``, ``"label"``, ``"name"``, ``"index"``, ``"width"``,
            ``"height"``, ``"format"``, ``"damaged"``, ``"resized_from"``, and further fields of the records. A record
            without a field gives None. ``{"pixel_values": "image", "labels": "label"}`` gives them other names. Fields
            that are image files, such as masks, are PIL images of the file's own mode, or bytes with ``decode=None``; a
            Decoder crops, resizes and mirrors them and ``"boxes"`` together with the image (docs/masks.md).
        drop_empty_boxes: Whether boxes that a Decoder's crop leaves without width or height are left out, and their
            rows in ``box_labels``, ``iscrowd``, ``difficult``, ``truncated`` and all fields named ``box_...``.
        resize: How the default images are resized. ``"exact"``: by Pillow. ``"fast"``: bilinear and bicubic resizing by
            torch, within 1 and 2 levels of Pillow. ``"scaled"``: as ``"fast"``, and where the image becomes at most
            half as large, a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, which is not Pillow's result.
        cache: Path of a folder on a local disk (not NFS) to which shards of the store come before they are read, for
            all processes of this machine that use it (docs/cache.md). It is created if it does not exist.
        cache_bytes: Most bytes of the shards in the cache. Shards that are needed last are removed first.

    Raises:
        StoreNotFoundError: Nothing is at the place.
        NotAStoreError: The place holds something else, or a store whose conversion is not finished.
        StoreVersionError: The store has a newer format.
        DamagedStoreError: The store is cut short or corrupted.
        OptionError: No record has one of the fields; or no record has a label and no fields were chosen; or
            ``transforms`` is given beside another transform; or ``resize`` is another word, or is given with another
            ``decode``; or the cache is at its origin, or smaller than a shard.
        TypeError: The place is not a path, ``fields`` are not names, or a transform or ``decode`` is not callable.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        decode: Callable[[bytes], Any] | None = decode_pil,
        transforms: Callable[..., Any] | None = None,
        fields: Iterable[str] | Mapping[str, str] | None = None,
        drop_empty_boxes: bool = True,
        resize: str = "exact",
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        checked = checked_place(place, "the path of a store")
        only_cached = cache is not None and is_remote(checked)
        store = None if only_cached else LMDBStore(checked)
        super().__init__(
            with_cache(store, place, cache, cache_bytes),
            transform,
            target_transform,
            decode=decode,
            transforms=transforms,
            fields=fields,
            drop_empty_boxes=drop_empty_boxes,
            resize=resize,
        )
