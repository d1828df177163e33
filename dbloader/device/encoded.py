"""The encoded files of a batch, on their way from a worker to whoever decodes them."""

from __future__ import annotations

from operator import index as as_index
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt
    from typing_extensions import Self


class EncodedImages:
    """Image files of a batch, not decoded, and the random numbers that decide what becomes of each.

    The bytes of all files are one tensor, so a batch goes from a worker in one piece of shared memory and is pinned by
    one copy; the rest is small and pickled. It has no ``to``: where a batch moves to a device, this stays on the CPU,
    since that is where decoders for a GPU read from. Nothing changes it, so threads may share it.

    Args:
        files: One encoded image each; they are copied.
        numbers: In [0, 1), shape (N, draws): what the Decoder takes for each image; None where it takes none.
        places: What to call each image in an error, such as its record; None where there is no more to say than its
            number in the batch.

    Attributes:
        data: The files one after another: uint8, shape (bytes,), on the CPU.
        numbers: float64, shape (N, draws).
        places: One for each image, or None.

    Raises:
        OptionError: There are other numbers of files, rows of numbers and places.
    """

    def __init__(
        self,
        files: Sequence[bytes | memoryview],
        numbers: npt.ArrayLike | None = None,
        places: Sequence[str] | None = None,
    ) -> None:
        rows = np.empty((len(files), 0)) if numbers is None else np.array(numbers, np.float64)
        if rows.ndim != 2 or len(rows) != len(files):
            raise OptionError(f"numbers must have a row for each of {len(files)} files, got the shape {rows.shape}")
        if places is not None and len(places) != len(files):
            raise OptionError(f"places must be one for each of {len(files)} files, got {len(places)}")
        self._ends = np.cumsum([len(file) for file in files], dtype=np.int64)
        joined = bytearray().join(files)
        self.data = torch.from_numpy(np.frombuffer(joined, np.uint8))
        self.numbers = rows
        self.places = None if places is None else tuple(places)

    @classmethod
    def concatenate(cls, parts: Iterable[EncodedImages]) -> EncodedImages:
        """Return the images of all parts, in their order: what a collate function makes of samples of one image.

        Raises:
            OptionError: There are no parts, or their images take different numbers of random numbers.
        """
        parts = list(parts)
        draws = sorted({part.numbers.shape[1] for part in parts})
        if len(draws) != 1:
            raise OptionError(f"parts must be some, with the same number of draws, got {draws} draws in {len(parts)}")
        named = all(part.places is not None for part in parts)
        return cls(
            [part.file(number) for part in parts for number in range(len(part))],
            np.concatenate([part.numbers for part in parts]),
            [place for part in parts for place in part.places or ()] if named else None,
        )

    def __len__(self) -> int:
        return len(self._ends)

    def tensor(self, number: int) -> torch.Tensor:
        """Return one file: uint8, shape (bytes,), a view of ``data``."""
        number = as_index(number)
        if not 0 <= number < len(self):
            raise IndexError(f"no image {number} in a batch of {len(self)}")
        return self.data[0 if number == 0 else self._ends[number - 1] : self._ends[number]]

    def file(self, number: int) -> memoryview:
        """Return one file as a view of ``data``."""
        return self.tensor(number).numpy().data

    def place(self, number: int) -> str:
        """Return what to call an image in an error."""
        told = f"image {number} of the batch"
        return told if self.places is None else f"{told}: {self.places[number]}"

    def pin_memory(self, device: Any = None) -> Self:
        """Return the same with the bytes in pinned memory; torch's DataLoader calls this, where it is asked to pin."""
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__, data=self.data.pin_memory())
        return clone

    def __repr__(self) -> str:
        draws = self.numbers.shape[1]
        return f"{type(self).__name__}({len(self)} images of {len(self.data):,} bytes together, {draws} draws each)"
