"""Copy an object in object storage to a file of this machine."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dbloader.errors import StoreAccessError, StoreError, StoreFullError, StoreNotFoundError, StoreUnreachableError
from dbloader.remote.bucket import PART_BYTES, PARTS_AT_ONCE

if TYPE_CHECKING:
    from dbloader.remote.bucket import Bucket, Item


def download(bucket: Bucket, key: str, path: str | os.PathLike[str]) -> None:
    """Copy an object into a new file, in several requests at once. The file is removed if that fails.

    Raises:
        StoreError: The object does not exist or cannot be read, or the file cannot be written.
    """
    item = bucket.head(key)
    if item is None:
        raise StoreNotFoundError(f"{bucket.place}/{key} does not exist")
    try:
        with open(path, "xb") as file:  # noqa: PTH123 - any path
            try:
                _copy(bucket, item, file.fileno())
            except BaseException:
                os.unlink(path)  # noqa: PTH108 - any path
                raise
    except StoreError:
        raise
    except OSError as error:
        kind = StoreFullError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else StoreAccessError
        raise kind(f"a copy of {bucket.place}/{key} cannot be written: {error.strerror}") from error


def _copy(bucket: Bucket, item: Item, descriptor: int) -> None:
    def copy(start: int) -> None:
        end = min(start + PART_BYTES, item.size)
        data = bucket.get(item.key, item.etag, (start, end))
        if len(data) != end - start:
            raise StoreUnreachableError(f"{bucket.place}/{item.key}: the answer is cut short")
        while start < end:  # a disk that is nearly full takes a part of what it is given
            start += os.pwrite(descriptor, memoryview(data)[start - end :], start)

    with ThreadPoolExecutor(PARTS_AT_ONCE) as threads:
        try:
            [*threads.map(copy, range(0, item.size, PART_BYTES))]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
