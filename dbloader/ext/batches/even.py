"""Mark the samples that a sampler repeats to give all ranks equal batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from typing_extensions import override

from dbloader.batches.base import OuterBatchFetcher
from dbloader.errors import OptionError
from dbloader.sampling.rng import SeededIndices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.batches.base import BatchFetcher, Finish, Slot, Submit
    from dbloader.batches.timed import TimedBatch

_VALID = "valid"


class EvenBatchFetcher(OuterBatchFetcher):
    """Adds a bool tensor of shape (batch,) to each batch: False for positions from ``length`` on, which repeat samples.

    The tensor becomes the last element of a tuple or list, or the value of ``"valid"`` in a dict.
    """

    def __init__(self, fetcher: BatchFetcher, length: int) -> None:
        super().__init__(fetcher.dataset, fetcher)
        self._length = length

    @override
    def begin(self, indices: Sequence[int], submit: Submit, size: int, read: bool = True, slot: Slot = None) -> Finish:
        assert isinstance(indices, SeededIndices), "create_loader uses its own sampler"
        valid = torch.from_numpy(np.asarray(indices.positions) < self._length)
        finish = self.inner.begin(indices, submit, size, read, slot)

        def finish_with_mask() -> TimedBatch:
            made = finish()
            return dataclasses.replace(made, batch=_with_mask(made.batch, valid))

        return finish_with_mask


def _with_mask(batch: Any, valid: torch.Tensor) -> Any:
    if isinstance(batch, Mapping) and _VALID not in batch:
        return {**batch, _VALID: valid}
    if type(batch) in (tuple, list):
        return type(batch)((*batch, valid))
    raise OptionError(
        f"even_batches=True needs batches that are tuples, lists, or dicts without the key {_VALID!r}, got a "
        f"{type(batch).__name__}{' with this key' if isinstance(batch, Mapping) else ''}: change collate_fn or fields"
    )
