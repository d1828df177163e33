"""Names of well-known recipes, so that code written for them runs after changing an import.

``background`` and ``BackgroundGenerator`` are those of the prefetch_generator package. ``DataLoaderX`` is a
DataLoader that is often written around them.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import DataLoader
from typing_extensions import override

from dbloader.loading.generator import BackgroundGenerator, background
from dbloader.loading.prefetch import PrefetchLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from dbloader.loading.stats import Stats

__all__ = ["BackgroundGenerator", "DataLoaderX", "background"]

T_co = TypeVar("T_co", covariant=True)


class DataLoaderX(DataLoader[T_co]):
    """A DataLoader whose iterators run ahead of their consumer in a background thread.

    It replaces the recipe ``class DataLoaderX(DataLoader): def __iter__(self): return
    BackgroundGenerator(super().__iter__())``. It is a PrefetchLoader in front of itself, with the same promises on
    order, errors, ``break`` and threads. For ``state_dict`` use PrefetchLoader.

    ``device``, ``depth`` and ``preparation`` and their errors are those of PrefetchLoader, all else of DataLoader.
    """

    def __init__(
        self,
        *args: Any,
        device: torch.device | str | int | None = None,
        depth: int = 2,
        preparation: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._prefetch_options = {"device": device, "depth": depth, "preparation": preparation}
        self._prefetched = self._wrap()

    def _wrap(self) -> PrefetchLoader[T_co]:
        return PrefetchLoader(_Inner(self), **self._prefetch_options)  # type: ignore[arg-type]

    @override
    def __iter__(self) -> Iterator[T_co]:  # type: ignore[override] # torch names a private class
        return iter(self._prefetched)

    def set_epoch(self, epoch: int) -> None:
        """Tell the samplers and the dataset the epoch, before ``iter()``."""
        self._prefetched.set_epoch(epoch)

    def stats(self) -> Stats:
        """Return what the latest iteration spent its time on; see PrefetchLoader."""
        return self._prefetched.stats()

    def close(self) -> None:
        """End all iterators; see PrefetchLoader."""
        self._prefetched.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_prefetched"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prefetched = self._wrap()


class _Inner:
    """A DataLoaderX as a plain DataLoader. The reference is weak, as the DataLoaderX owns this object."""

    def __init__(self, loader: DataLoaderX[Any]) -> None:
        self._loader = weakref.ref(loader)

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader()
        assert loader is not None, "only the loader iterates this"
        return DataLoader.__iter__(loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("set_epoch", "state_dict"):
            raise AttributeError(name)
        return getattr(self._loader(), name)
