"""The interface of opened images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt


class OpenImage(Protocol):
    """An image of known size, of which parts can be decoded."""

    @property
    def width(self) -> int:
        """Width in pixels."""

    @property
    def height(self) -> int:
        """Height in pixels."""

    def part(
        self, left: int, top: int, width: int, height: int, tiles: bytes | memoryview | None, factor: int
    ) -> Callable[[], npt.NDArray[np.uint8]]:
        """Return a function that decodes a part of the image; do here what only Python can do.

        The part is given in pixels. With ``factor`` 2, 4 or 8 it may come so many times smaller, if that is faster.
        ``tiles`` are the lengths of the tiles of a tiled JPEG.

        The function is called at most once. It returns uint8, shape (height, width, 3), RGB, 0 to 255; writable,
        without negative strides, shared with nothing else. Both may raise DamagedImageError: the image does not
        decode, or only with a warning.
        """
