"""How fast a training would be if data were free."""

from __future__ import annotations

from operator import index as as_index
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dbloader.errors import LoaderError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")


class Headspace(Generic[T]):
    """The first batch of a loader, again and again, as often as the loader has batches: a training without its data.

    A training that takes as long with it as with the loader is not held up by its data. One that is faster with it
    shows by how much better data could speed it up, at the most. The batch is already on the device; whoever changes
    it in place gets it changed the next time.

    Args:
        loader: Where the batch is from.
        batches: How often it comes in an epoch; None for the loader's length.

    Raises:
        OptionError: ``batches`` is below 1.
        LoaderError: From ``iter()``: the loader has no batch.
        TypeError: From ``len()`` and ``iter()``: ``batches`` is None, and the loader has no length.
    """

    def __init__(self, loader: Iterable[T], batches: int | None = None) -> None:
        if batches is not None and as_index(batches) < 1:
            raise OptionError(f"batches must be at least 1, got {batches}")
        self._loader = loader
        self._batches = batches
        self._batch: list[T] = []

    def __len__(self) -> int:
        return len(self._loader) if self._batches is None else self._batches  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        count = len(self)
        if not self._batch:
            self._take_one()
        if not self._batch:
            raise LoaderError("the loader has no batch that could be given again and again")
        return (self._batch[0] for _ in range(count))

    def _take_one(self) -> None:
        # Where the loader's consumer is stays as it was.
        state = self._loader.state_dict() if hasattr(self._loader, "state_dict") else None
        iterator = iter(self._loader)
        for batch in iterator:
            self._batch.append(batch)
            break
        if hasattr(iterator, "close"):
            iterator.close()
        if state is not None and hasattr(self._loader, "load_state_dict"):
            self._loader.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        # As a PrefetchLoader is the loader behind it: so that a training finds its dataset and its sampler. But where
        # the loader is tells nothing of this.
        if name.startswith("_") or name in ("state_dict", "load_state_dict"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)
