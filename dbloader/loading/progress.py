"""A progress bar that tells whether the data keeps up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dbloader.loading.stats import Stats

T = TypeVar("T")


def with_bar(batches: Iterator[T], stats: Callable[[], Stats], options: dict[str, Any]) -> Iterator[T]:
    """Yield batches under a bar of tqdm, which ends with them and however else they are left.

    Args:
        batches: Of one iteration.
        stats: Gives what its time went into, so far.
        options: Of tqdm.
    """
    from tqdm.auto import tqdm  # which takes longer to import than many loaders to make

    with tqdm(**{"unit": "batch", **options}) as bar:
        for batch in batches:
            bar.set_postfix_str(rates(stats()), refresh=False)
            bar.update()
            yield batch
            del batch  # else it would live until the next is there


def rates(stats: Stats) -> str:
    """Return the speed and the share of waiting in a few words."""
    speed = "" if stats.samples_per_s is None else f"{stats.samples_per_s:.0f} images/s, "
    return f"{speed}waiting {100 * stats.waiting:.0f} %"
