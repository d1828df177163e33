"""The files of a batch arrive as they were, and are named in errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from dbloader.device.encoded import EncodedImages
from dbloader.device.transfer import to_device

if TYPE_CHECKING:
    import pytest

FILES = [b"one", b"", b"three"]
NUMBERS = np.random.default_rng(0).random((3, 2))


def test_files_and_numbers_come_back_as_they_were_given() -> None:
    images = EncodedImages([b"one", memoryview(b""), b"three"], NUMBERS, ["a", "b", "c"])
    assert [bytes(images.file(number)) for number in range(3)] == FILES
    assert bytes(images.tensor(2).numpy()) == b"three"
    assert np.array_equal(images.random_numbers, NUMBERS)
    assert images.describe(1) == "image 1 of the batch: b"
    assert EncodedImages([b"one"]).describe(0) == "image 0 of the batch"


class Encoding(Dataset[Any]):
    """Return a whole batch for an index, as a fetcher of batches does."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[EncodedImages, torch.Tensor]:
        return EncodedImages(FILES, NUMBERS, ["a"] * 3), torch.tensor([index])


def test_a_worker_hands_a_batch_over_as_it_made_it() -> None:
    for images, _ in DataLoader(Encoding(), batch_size=None, num_workers=1):
        assert [bytes(images.file(at)) for at in range(3)] == FILES
        assert np.array_equal(images.random_numbers, NUMBERS)
        assert images.data.is_shared()


def test_only_the_bytes_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())
    images = EncodedImages(FILES, NUMBERS, ["a", "b", "c"])
    pinned = images.pin_memory()
    assert pinned.data is not images.data
    assert [bytes(pinned.file(number)) for number in range(3)] == FILES
    assert (pinned.random_numbers is images.random_numbers, pinned.names) == (True, ("a", "b", "c"))


def test_files_stay_where_they_are_when_their_batch_moves() -> None:
    images = EncodedImages(FILES)
    moved, labels = to_device((images, torch.zeros(3)), "meta")
    assert (moved is images, labels.device.type) == (True, "meta")
