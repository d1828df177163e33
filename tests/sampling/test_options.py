"""Samplers refuse wrong options."""

from __future__ import annotations

from typing import Any

import pytest

from dbloader import sampling
from dbloader.errors import OptionError
from tests.sampling.kinds import LENGTH

DATA = range(LENGTH)
shuffled: Any = sampling.ShuffleSampler
ordered: Any = sampling.OrderedSampler
batches: Any = sampling.SeededBatchSampler
ONE = shuffled(range(10), 4, 1)  # a sampler with 3 samples


@pytest.mark.parametrize(
    ("call", "arguments", "options", "kind", "message"),
    [
        (shuffled, ("x.lmdb",), {}, TypeError, "^dataset must be a dataset, not its place: got 'x.lmdb'$"),
        (ordered, ("x.lmdb",), {}, TypeError, "^dataset must be a dataset, not its place: got 'x.lmdb'$"),
        (shuffled, (DATA,), {"drop_last": 0}, TypeError, "^drop_last must be True or False, got 0$"),
        (shuffled, (DATA,), {"seed": 1.5}, TypeError, r"^seed must be an int, got 1\.5$"),
        (shuffled, (DATA, 2, "0"), {}, TypeError, "^rank must be an int, got '0'$"),
        (shuffled, (DATA, 0, 0), {}, OptionError, "^num_replicas must be at least 1, got 0$"),
        (ordered, (DATA, 2, 2), {}, OptionError, "^rank must be 0 to 1, of 2 replicas, got 2$"),
        (shuffled, (DATA, 2, -1), {}, OptionError, "^rank must be 0 to 1, of 2 replicas, got -1$"),
        (shuffled, (DATA, 2), {}, OptionError, "must be given together .* got num_replicas=2 and rank=None$"),
        (ONE.set_epoch, (-1,), {}, OptionError, "^epoch must be at least 0, got -1$"),
        (ONE.state_after, (-1,), {}, OptionError, "^consumed must be 0 to 3 \\(rank 1 has 3 samples\\), got -1$"),
        (ONE.state_after, (4,), {}, OptionError, "^consumed must be 0 to 3 \\(rank 1 has 3 samples\\), got 4$"),
        (batches, (ONE, 0), {}, OptionError, "^batch_size must be at least 1, got 0$"),
        (batches, (ONE, 2, "no"), {}, TypeError, "^drop_last must be True or False, got 'no'$"),
        (batches, (DATA, 2), {}, TypeError, "^sampler must be one of dbloader's, .* got range$"),
    ],
)
def test_wrong_option_is_refused(
    call: Any, arguments: Any, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call(*arguments, **options)
