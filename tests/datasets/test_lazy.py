"""Datasets return lazy images by default. Late errors name the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from dbloader import ImageFormat, LMDBDataset, convert, create_loader
from dbloader.decoding import DecodeTensor, decode_pil
from dbloader.decoding.lazy import LazyImage
from dbloader.errors import DamagedImageError, OptionError
from dbloader.records.record import Record
from tests.support.images import plant_photos

KINDS: dict[str, dict[str, Any]] = {"tiled": {"images": ImageFormat(tile=True, quality=90)}, "as they are": {}}


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    plant_photos(tmp_path / "images", 8, width=150, height=90, quality=90)
    convert(tmp_path / "images", tmp_path / "a.lmdb", **KINDS[request.param])
    return tmp_path / "a.lmdb"


def eager(dataset: LMDBDataset, at: int) -> Image.Image:
    data = dataset.record(at).image
    assert isinstance(data, bytes)
    return decode_pil(data)


def corner(image: Image.Image) -> torch.Tensor:
    crop = image.crop((5, 6, 90, 70)).resize((20, 20), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(crop))


def test_samples_are_lazy_with_pixels_of_decode_pil(place: Path) -> None:
    with LMDBDataset(place) as dataset, LMDBDataset(place, lambda image: image.crop((3, 4, 50, 60))) as crops:
        for at in range(len(dataset)):
            image = dataset[at][0]
            assert type(image) is LazyImage
            expected = eager(dataset, at)
            assert image.size == expected.size
            assert crops[at][0] == expected.crop((3, 4, 50, 60))
            assert image == expected


def test_resize_is_exact_by_default_and_close_otherwise(place: Path) -> None:
    expected = torch.stack([corner(eager(LMDBDataset(place), at)).int() for at in range(8)])
    for resize, most in (("exact", 0), ("fast", 1), ("scaled", 12)):  # decoded at half size
        dataset = LMDBDataset(place, corner, resize=resize)
        for loader in (
            DataLoader(dataset, 4),
            create_loader(dataset, None, 4, transform=corner, num_workers=0, normalize=None),
        ):
            batches = torch.cat([batch[0] for batch in loader]).int()
            assert (batches - expected).abs().max() <= most


class WithWrongTiles(LMDBDataset):
    """A dataset whose records have wrong tile lengths."""

    def _decoder_options(self, record: Record) -> dict[str, Any]:
        return {**super()._decoder_options(record), "tiles": b"\1\0"}


def cropped(sample: Any) -> Any:
    return sample[0].crop((3, 4, 50, 60))


def as_list(samples: list[Any]) -> list[Any]:
    return [cropped(sample) for sample in samples]


def message_of(loader: DataLoader[Any]) -> str:
    """Return an error's message and notes. Keeping the error itself would keep the workers alive."""
    try:
        for _ in loader:
            pass
    except DamagedImageError as error:
        return "\n".join([str(error), *getattr(error, "__notes__", [])])
    raise AssertionError("no error")


@pytest.mark.slow
def test_error_about_late_damage_in_a_worker_names_the_record_once(tmp_path: Path) -> None:
    plant_photos(tmp_path / "images", 2, width=900, height=700, quality=90)
    convert(tmp_path / "images", tmp_path / "a.lmdb", images=ImageFormat(tile=True, quality=90))
    dataset = WithWrongTiles(tmp_path / "a.lmdb")
    # The thread that sends the images decodes them, and must not lose the error.
    loader = DataLoader(dataset, 2, num_workers=1, collate_fn=as_list, multiprocessing_context="fork")
    assert message_of(loader).count("in record 0 (cat/0000.jpg)") == 1


def test_wrong_resize_is_refused_and_repr_shows_resize(place: Path) -> None:
    with pytest.raises(OptionError, match=r"resize must be one of exact, fast, scaled, got 'quick'"):
        LMDBDataset(place, resize="quick")
    for decode in (None, DecodeTensor()):
        with pytest.raises(OptionError, match=r"resize='fast' is for the default decode, decode_pil"):
            LMDBDataset(place, decode=decode, resize="fast")
    assert "Resize: fast" in repr(LMDBDataset(place, resize="fast"))
    assert "Resize" not in repr(LMDBDataset(place))
