"""Samplers that give each index once: shuffled for training, in order for evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from dbloader._options import whole_number
from dbloader.sampling.base import ResumableSampler, length_of
from dbloader.sampling.permutation import Permutation

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from dbloader.sampling.rng import Array


class ShuffleSampler(ResumableSampler):
    """Yields all indices of a dataset in a random order. Replaces DistributedSampler and RandomSampler.

    The sampler computes the order, and makes no list of indices. So an epoch of a billion samples can start at any
    sample within a millisecond. See ResumableSampler for resuming.

    Args:
        dataset: Anything that has a length; only the length is used.
        num_replicas: Number of processes that share the samples; from torch.distributed if it is initialized, else 1.
        rank: Number of this process; from torch.distributed if it is initialized, else 0.
        seed: Any integer, of any size; must be the same on all ranks.
        drop_last: Leave out the tail that the ranks cannot share evenly, instead of repeating some samples.

    Raises:
        OptionError: ``num_replicas`` is below 1, or ``rank`` is not 0 to ``num_replicas - 1``. Or torch.distributed is
            not initialized, and only one of ``num_replicas`` and ``rank`` is given. From ``len()`` and ``iter()``:
            torchrun started several processes, torch.distributed is not initialized, and neither number is given.
        TypeError: ``dataset`` has no length; ``num_replicas``, ``rank`` or ``seed`` is not an int; or
            ``drop_last`` is not a bool.
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
    """Yields all indices of a dataset in order, each on exactly one rank.

    So a sum over all ranks is the sum over the dataset. Some ranks may have one sample less, and so one batch less: do
    not call a collective operation, such as all_reduce, for each batch. All epochs have the same order.

    Args:
        dataset: Anything that has a length; only the length is used.
        num_replicas, rank: As in ShuffleSampler, with the same errors.
        even_batch_size: Pad the order until each rank has the same number of whole batches of this size. Positions from
            ``length`` on are padding; their samples repeat the first samples.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        even_batch_size: int | None = None,
    ) -> None:
        length = length_of(dataset)
        super().__init__(length, length, num_replicas, rank)
        self._even_batch_size = whole_number("even_batch_size", even_batch_size, 1, none=True)

    @override
    def order(self, seed: int, epoch: int) -> Callable[[Array], Array]:
        return lambda positions: positions

    @override
    def end_of(self, position: int) -> int:
        if self._even_batch_size is None:
            return self.length
        of_all_ranks = self._even_batch_size * self.num_replicas
        return position + -(-(self.length - position) // of_all_ranks) * of_all_ranks
