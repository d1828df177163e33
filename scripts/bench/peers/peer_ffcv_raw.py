"""FFCV with pixels instead of JPEGs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import peer_ffcv
from peer_ffcv import batches

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["batches", "prepare"]


def prepare(source: Path, place: Path) -> None:
    peer_ffcv.prepare(source, place, "raw")
