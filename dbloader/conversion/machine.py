"""What a conversion needs of the machine and of libraries: memory, Pillow's settings."""

from __future__ import annotations

import ctypes
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from PIL import ImageFile

if TYPE_CHECKING:
    from collections.abc import Iterator

# From malloc.h; mallopt(3) tells what they do.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Make glibc's malloc keep the buffers of files that are done for the next ones, but not those of large images.

    By default it gives memory back to the system whenever 128 kB are free, and each file then pays for the same pages
    anew: 208,000 page faults and 0.45 s more for 5,000 photographs. And once a large block has been freed, it keeps
    large ones too, for each thread apart: 12 threads that decode images of 96 MB, two at a time, came to 2.4 GB.
    """
    with suppress(AttributeError, OSError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, 64 * 2**20)
        mallopt(_M_MMAP_THRESHOLD, 4 * 2**20)


@contextmanager
def strict_pillow() -> Iterator[None]:
    """Let Pillow tell what matters, and only that: this process's settings for it are put back at the end."""
    lenient = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = False  # many training scripts set it: no damage would be found
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd EXIF, odd palettes
            yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = lenient
