"""dbloader with worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import peer_dbloader_threads

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def batches(place: Path, workers: int) -> Iterable[Any]:
    return peer_dbloader_threads.batches(place, workers, "processes")
