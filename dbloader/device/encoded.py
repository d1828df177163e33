"""The encoded files of a batch, on their way from a worker to a decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from typing_extensions import Self


class EncodedImages:
    """The image files of a batch, not yet decoded, and the random numbers for the decoding of each.

    The bytes of all files are one tensor, so a batch leaves a worker in one piece of shared memory and is pinned by one
    copy; the rest is small and pickled. It has no method ``to``: when a batch moves to a device, this stays on the CPU,
    where decoders for a GPU read it. It never changes, so threads may share it.

    Args:
        files: The encoded images; they are copied.
        random_numbers: In [0, 1), for the Decoder, shape (N, draws); None if it takes none.
        names: How to call each image in an error, such as by its record; None for its number in the batch alone.

    Attributes:
        data: The files one after another: uint8, shape (bytes,), on the CPU.
        random_numbers: float64, shape (N, draws).
    """

    def __init__(
        self,
        files: Sequence[bytes | memoryview],
        random_numbers: npt.ArrayLike | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self._ends = np.cumsum([len(file) for file in files], dtype=np.int64)
        self.data = torch.from_numpy(np.frombuffer(bytearray().join(files), np.uint8))
        self.random_numbers = (
            np.empty((len(files), 0)) if random_numbers is None else np.array(random_numbers, np.float64)
        )
        self.names = None if names is None else tuple(names)

    def __len__(self) -> int:
        return len(self._ends)

    def tensor(self, number: int) -> torch.Tensor:
        """Return one file: uint8, shape (bytes,), a view of ``data``."""
        return self.data[0 if number == 0 else self._ends[number - 1] : self._ends[number]]

    def file(self, number: int) -> memoryview:
        """Return one file as a view of ``data``."""
        return self.tensor(number).numpy().data

    def describe(self, number: int) -> str:
        """Return how to call an image in an error."""
        text = f"image {number} of the batch"
        return text if self.names is None else f"{text}: {self.names[number]}"

    def pin_memory(self, device: Any = None) -> Self:
        """Return a copy whose bytes are in pinned memory; torch's DataLoader calls this for ``pin_memory=True``."""
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__, data=self.data.pin_memory())
        return clone
