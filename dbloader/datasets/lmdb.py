"""The images and labels of an LMDB store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dbloader.datasets.store import StoreDataset, checked_place
from dbloader.decoding.pillow import decode_pil
from dbloader.stores.lmdb.store import LMDBStore

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable


class LMDBDataset(StoreDataset):
    """The images and labels of an LMDB store, in place of torchvision's ImageFolder.

    It opens the store when it is made, so that a wrong place is found at once; each process that it is sent to, by
    pickling or fork, opens the store for itself at its first read. Threads may share it. Memory does not grow with the
    number of records until ``targets``, ``names`` or ``samples`` are asked for, which take 8, about 30 and about 40
    bytes a record.

    A sample is ``(image, label)``: the image as ``decode`` and ``transform`` give it, the label an int (None for a
    record without one, which torch cannot collate, and of which ``targets`` and ``samples`` have -9223372036854775808).
    With ``fields`` it is a dict of those fields.

    Args:
        place: Path of the store.
        transform: Called with each decoded image; not where there is none.
        target_transform: Called with each label; not where there is none.
        decode: Called with the bytes of each image file; None gives the bytes themselves. An image that was stored as
            an array is given as it is. The default gives an RGB PIL image, as ImageFolder does.
        fields: Names of fields to give in a dict: ``"image"``, ``"label"``, ``"name"``, ``"index"``, ``"width"``,
            ``"height"``, ``"format"``, ``"damaged"``, ``"resized_from"``, and those that the records have beside. A
            record without one gives None.

    Raises:
        StoreNotFoundError: Nothing is at the place.
        NotAStoreError: Something else is, or a store whose conversion is not finished.
        StoreVersionError: The store has a newer format.
        DamagedStoreError: The store is cut short or corrupted.
        OptionError: No record has one of the fields; or none has a label and no fields were chosen.
        TypeError: The place is no path, ``fields`` no names, or ``transform``, ``target_transform`` or ``decode`` no
            callable.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        decode: Callable[[bytes], Any] | None = decode_pil,
        fields: Iterable[str] | None = None,
    ) -> None:
        store = LMDBStore(checked_place(place, "the path of a store"))
        super().__init__(store, transform, target_transform, decode=decode, fields=fields)
