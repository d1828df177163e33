"""Samplers around the core refuse wrong options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dbloader import sampling
from dbloader.errors import OptionError
from dbloader.records.columns import NO_LABEL
from tests.ext.sampling.kinds import PADDED, Sharded
from tests.sampling.kinds import LENGTH

DATA = range(LENGTH)
block: Any = sampling.BlockShuffleSampler
weighted: Any = sampling.WeightedSampler
balanced: Any = sampling.ClassBalancedSampler


def blocks_ahead(rank: int) -> list[Any]:
    return list(block(DATA, num_replicas=2, rank=0).blocks_ahead([rank]))


@pytest.mark.parametrize(
    ("call", "arguments", "options", "kind", "message"),
    [
        (block, ("x.lmdb",), {}, TypeError, "^dataset must be a dataset, not its place: got 'x.lmdb'$"),
        *((make, (DATA,), {"drop_last": 0}, TypeError, "^drop_last must be True or False, got 0$") for make in PADDED),
        (block, (DATA, 0), {}, OptionError, "^block_size must be at least 1, got 0$"),
        (block, (DATA, 4, -5), {}, OptionError, "^buffer_blocks must be at least 1, got -5$"),
        (block, (DATA,), {"lanes": 0}, OptionError, "^lanes must be at least 1, got 0$"),
        (
            block,
            (Sharded(3, 8), None, 4),
            {"stick_to_shard": True},
            OptionError,
            "=True needs lanes, got lanes=None and ",
        ),
        *(
            (
                block,
                (data, size),
                {"lanes": 4, "stick_to_shard": True},
                OptionError,
                "needs all records of a store with ",
            )
            for data, size in ((DATA, None), (Sharded(3, 8), 4))
        ),
        (
            block,
            (Sharded(3, 8),),
            {"lanes": 4, "stick_to_shard": 1},
            TypeError,
            "^stick_to_shard must be True or False",
        ),
        (blocks_ahead, (2,), {}, OptionError, "^rank must be from 0 to 1, got 2$"),
        (weighted, ([0.0, 0.0],), {}, OptionError, "^at least one weight must be above 0, got 2 that are 0$"),
        (weighted, ([1, -2.0],), {}, OptionError, r"^weights must be finite and at least 0, got -2\.0 at index 1$"),
        (weighted, ([1, np.nan],), {}, OptionError, "^weights must be finite and at least 0, got nan at index 1$"),
        (weighted, ([[1.0, 2.0]],), {}, OptionError, r"^weights must be one for each index, .* of shape \(1, 2\)$"),
        (weighted, ([1.0], 0), {}, OptionError, "^num_samples must be at least 1, got 0$"),
        (balanced, ([3, NO_LABEL, NO_LABEL],), {}, OptionError, "got 2 without a label, the first at index 1: use "),
        *(
            (balanced, (labels,), {}, OptionError, "^labels must be one integer for each index, got an array of ")
            for labels in ([], [0.5], ["a"], [[1, 2]], [True])
        ),
    ],
)
def test_wrong_option_is_refused(
    call: Any, arguments: Any, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call(*arguments, **options)
