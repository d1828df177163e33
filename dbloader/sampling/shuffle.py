"""All records once: shuffled for training, in order for evaluation."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader._describe import short_repr
from dbloader.sampling.base import ResumableSampler
from dbloader.sampling.permutation import Permutation

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.sampling.rng import Array


def length_of(dataset: Any) -> int:
    """Return the length of a dataset; raise TypeError for one without, and for text, whose letters would be samples."""
    if not isinstance(dataset, Sized) or isinstance(dataset, (str, bytes)):
        raise TypeError(f"dataset must be a dataset, or anything else that has a length, got {short_repr(dataset)}")
    return len(dataset)


class ShuffleSampler(ResumableSampler):
    """All indices of a dataset in a random order that is computed, in place of DistributedSampler and RandomSampler.

    No list of indices is made: an epoch of a billion samples starts, at any sample, within a millisecond. See
    ResumableSampler for resuming.

    Args:
        dataset: Anything that has a length; only the length is used.
        num_replicas: Number of processes that share the samples; from torch.distributed if that is initialized, else 1.
        rank: Number of this process; likewise, else 0.
        seed: Any integer, of any size; must be the same on all ranks.
        drop_last: Leave out the tail that the ranks cannot share evenly, instead of repeating some samples.

    Raises:
        OptionError: ``num_replicas`` is below 1, or ``rank`` not 0 to ``num_replicas - 1``. Or only one of the two is
            given and torch.distributed is not initialized. From ``len()`` and ``iter()``: neither is given,
            torch.distributed is not initialized, and torchrun started this process as one of several.
        TypeError: ``dataset`` has no length, or is a str. ``num_replicas``, ``rank`` or ``seed`` is not an int, or
            ``drop_last`` not a bool.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        length = length_of(dataset)
        super().__init__(length, length, num_replicas, rank, seed=seed, drop_last=drop_last)

    @override
    def order(self, seed: int, epoch: int) -> Callable[[Array], Array]:
        return Permutation(self.length, seed, epoch)


class OrderedSampler(ResumableSampler):
    """All indices of a dataset in order, each on just one rank: none is repeated or left out.

    So sums over all ranks are those over the dataset. The ranks' shares may differ by one sample: do not call a
    collective operation for each batch. The epoch does not change the order.

    Args:
        dataset: Anything that has a length; only the length is used.
        num_replicas, rank: As in ShuffleSampler, like all errors.
    """

    def __init__(self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None) -> None:
        length = length_of(dataset)
        super().__init__(length, length, num_replicas, rank)

    @override
    def order(self, seed: int, epoch: int) -> Callable[[Array], Array]:
        return lambda positions: positions

    @override
    def _end(self, position: int) -> int:
        return self.length
