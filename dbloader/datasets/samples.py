"""The samples of a dataset as ImageFolder lists them, without an object for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from typing_extensions import override

if TYPE_CHECKING:
    import numpy as np

    from dbloader.records.columns import Names


class Samples(Sequence[tuple[str, int]]):
    """The (name, label) of all records; Python objects are made only when one is asked for."""

    def __init__(self, names: Names, targets: np.ndarray[Any, Any]) -> None:
        self._names = names
        self._targets = targets

    @overload
    def __getitem__(self, index: int) -> tuple[str, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, int]]: ...
    @override
    def __getitem__(self, index: int | slice) -> tuple[str, int] | list[tuple[str, int]]:
        if isinstance(index, slice):
            return list(zip(self._names[index], self._targets[index].tolist(), strict=True))
        return self._names[index], int(self._targets[index])

    @override
    def __len__(self) -> int:
        return len(self._names)

    @override
    def __repr__(self) -> str:
        return f"<{len(self)} samples (name, label), packed>"
