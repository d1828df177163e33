from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.images import photo, plant


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of three photographs of 64 x 48 pixels."""
    return plant(tmp_path / "images" / "train", {f"{number}.jpg": photo(number, 64, 48) for number in range(3)})
