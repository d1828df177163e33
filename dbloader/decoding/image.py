"""What every kind of opened image can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt


class OpenImage(Protocol):
    """An image of which a part can be had."""

    @property
    def width(self) -> int:
        """Of the image, in pixels."""

    @property
    def height(self) -> int:
        """Of the image, in pixels."""

    def part(
        self, left: int, top: int, width: int, height: int, tiles: bytes | memoryview | None, factor: int
    ) -> Callable[[], npt.NDArray[np.uint8]]:
        """Return what decodes a part of the image, with as little of Python's work as may be left.

        Args:
            left: Of its left edge in pixels, as the next three.
            top: Of its upper edge.
            width: At least 1.
            height: At least 1.
            tiles: Lengths of the tiles, where it is a tiled JPEG.
            factor: 1, 2, 4 or 8: a part that is so many times smaller will do, if it is had faster.

        Returns:
            A function that gives uint8, shape (height, width, 3), RGB, 0 to 255; writable, without negative strides,
            the caller's alone. It is called once at most.

        Raises:
            DamagedImageError: The image does not decode, or only with a warning; here or from the function.
        """
