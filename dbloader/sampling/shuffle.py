"""All records once: shuffled for training, in order for evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from dbloader.sampling.base import ResumableSampler, length_of
from dbloader.sampling.permutation import Permutation

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from dbloader.sampling.rng import Array


class ShuffleSampler(ResumableSampler):
    """All indices of a dataset in a random order that is computed, in place of DistributedSampler and RandomSampler.

    No list of indices is made: an epoch of a billion samples begins, or goes on at any sample, within a millisecond.
    ResumableSampler says how it goes on from the middle.

    Args:
        dataset: Anything that has a length; only that is used.
        num_replicas: Number of processes that share the samples; from torch.distributed if that is initialized, else 1.
        rank: Which of them this is; likewise, else 0.
        seed: Any integer, of any size; must be the same on all ranks.
        drop_last: Leave out the tail that the ranks cannot share evenly, rather than repeat some samples.

    Raises:
        OptionError: ``num_replicas`` is below 1, or ``rank`` not 0 to ``num_replicas - 1``. Or only one of the two is
            given, and torch.distributed is not initialized. Or neither is given, torch.distributed is
            not initialized, and torchrun started this process as one of several: this comes from ``len()`` and
            ``iter()``, as it may still be initialized.
        TypeError: ``dataset`` has no length, or is a str. ``num_replicas``, ``rank`` or ``seed`` is no int, or
            ``drop_last`` no bool.
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
        super().__init__(
            length, num_replicas=num_replicas, rank=rank, seed=seed, drop_last=drop_last, population=length
        )

    @override
    def _order(self, seed: int, epoch: int) -> Callable[[Array], Array]:
        return Permutation(self.length, seed, epoch).__getitem__


class OrderedSampler(ResumableSampler):
    """All indices of a dataset in order, each on just one rank: nothing is repeated and nothing left out.

    So sums over all ranks are those over the dataset. The ranks' shares may differ by one sample: no collective
    operation may be called for each batch. The epoch makes no difference to the order.

    Args:
        dataset: Anything that has a length; only that is used.
        num_replicas: As in ShuffleSampler.
        rank: As in ShuffleSampler.

    Raises:
        OptionError: As in ShuffleSampler.
        TypeError: As in ShuffleSampler.
    """

    def __init__(self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None) -> None:
        length = length_of(dataset)
        super().__init__(length, num_replicas=num_replicas, rank=rank, seed=0, drop_last=False, population=length)

    @override
    def _order(self, seed: int, epoch: int) -> Callable[[Array], Array]:
        return _as_they_are

    @override
    def _end(self, position: int) -> int:
        return self.length


def _as_they_are(positions: Array) -> Array:
    return positions
