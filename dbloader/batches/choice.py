"""Which way the batches of a dataset are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Subset

from dbloader.batches.encoded import EncodedBatchMaker
from dbloader.batches.samples import RecordBatchMaker, SampleBatchMaker
from dbloader.batches.subsets import SubsetBatchMaker
from dbloader.batches.tensors import TensorBatchMaker
from dbloader.datasets.base import StoreDataset
from dbloader.datasets.internals import Internals
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.batches.base import BatchMaker


def choose_maker(
    dataset: Any,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    *,
    transform: Callable[..., Any] | None = None,
    encoded: bool = False,
) -> BatchMaker:
    """Gives what makes the batches of a dataset with the fewest copies.

    Args:
        dataset: A map-style dataset; a torch Subset of one gets what that would get.
        collate_fn: Makes a batch of a list of samples; torch's if None.
        transform: Applied to the images of a dataset that is no store's.
        encoded: Hand over image files, which are decoded on the device.

    Raises:
        OptionError: ``encoded``, and the dataset is no store's, has a transform of its own, makes its samples itself,
            or has no Decoder with outputs of one size; or there is a ``collate_fn``.
    """
    if type(dataset) is Subset:  # a subclass may do otherwise
        return SubsetBatchMaker(
            dataset, choose_maker(dataset.dataset, collate_fn, transform=transform, encoded=encoded)
        )
    if encoded:
        if transform is not None or collate_fn is not None or not TensorBatchMaker.suits(dataset):
            raise OptionError(
                "decode='device' is for an LMDBDataset or MongoDataset whose images a Decoder of one size makes, such "
                "as RandomResizedCrop(224), without another transform and without collate_fn, "
                f"got {type(dataset).__name__}"
            )
        return EncodedBatchMaker(dataset)
    if transform is None and isinstance(dataset, StoreDataset) and not Internals(dataset).makes_its_own_samples:
        if collate_fn is None and TensorBatchMaker.suits(dataset):
            return TensorBatchMaker(dataset)
        return RecordBatchMaker(dataset, collate_fn)
    return SampleBatchMaker(dataset, transform, collate_fn)
