"""Files that are known to be whole are decoded no further than is needed, with the same pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import simplejpeg
import torch

from dbloader import LMDBDataset, convert
from dbloader.decoding import RandomResizedCrop
from dbloader.decoding.jpeg import open_jpeg, scale
from dbloader.errors import DamagedImageError
from tests.support.jpegs import draw, encode

if TYPE_CHECKING:
    from pathlib import Path

KINDS: dict[str, dict[str, Any]] = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "gray": {"mode": "L"},
    "progressive": {"progressive": True},
    "restart markers": {"restart_marker_rows": 1},
    "a thumbnail before it": {"exif": b"Exif\0\0" + encode(draw(16, 16))},
}


def file(kind: str, width: int = 75, height: int = 201) -> bytes:
    options = dict(KINDS[kind])
    return encode(draw(width, height, options.pop("mode", "RGB")), quality=90, **options)


@pytest.mark.parametrize("factor", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_every_part_has_the_pixels_of_the_whole(kind: str, factor: int) -> None:
    data = file(kind)
    least = {"min_width": -(-75 // factor), "min_height": -(-201 // factor), "min_factor": factor}
    whole = simplejpeg.decode_jpeg(data, "RGB", **least)
    assert whole.shape[:2] == (least["min_height"], least["min_width"])
    jpeg = open_jpeg(data, known_intact=True)
    assert jpeg is not None
    for bottom in range(1, 202):
        top = max(0, bottom - 9)
        expected = whole[scale(top, bottom - top, factor), scale(3, 60, factor)]
        assert np.array_equal(jpeg.part(3, top, 60, bottom - top, factor)(), expected), bottom


@pytest.mark.parametrize("factor", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"progressive"}))
def test_what_lies_below_is_not_decoded(kind: str, factor: int) -> None:
    data = file(kind)
    sound = open_jpeg(data, known_intact=True)
    cut = data[:-200] + data[-2:]
    jpeg, strict = open_jpeg(cut, known_intact=True), open_jpeg(cut)
    assert jpeg is not None
    assert strict is not None
    assert sound is not None
    assert np.array_equal(jpeg.part(0, 0, 75, 60, factor)(), sound.part(0, 0, 75, 60, factor)())
    with pytest.raises(DamagedImageError, match=r"^the image (does not decode|has data left)"):
        strict.part(0, 0, 75, 60, factor)()


def test_the_crops_are_those_of_files_that_are_not_known() -> None:
    data, decoder = file("4:2:0", 301, 203), RandomResizedCrop(32)
    for seed in range(40):
        random_numbers = np.random.default_rng(seed).random(decoder.draws)
        assert torch.equal(decoder(data, random_numbers), decoder(data, random_numbers, known_intact=True))


@pytest.mark.parametrize(("check", "known"), [("decode", True), ("structure", False), ("none", False)])
def test_a_dataset_knows_what_conversion_has_decoded(check: str, known: bool, tmp_path: Path) -> None:
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    (folder / "one.jpg").write_bytes(file("4:2:0"))
    convert(tmp_path / "images", tmp_path / "a.lmdb", check=check)
    told = []

    class Told(RandomResizedCrop):
        def __call__(self, *arguments: Any, known_intact: bool = False, **options: Any) -> torch.Tensor:
            told.append(known_intact)
            return super().__call__(*arguments, known_intact=known_intact, **options)

    assert LMDBDataset(tmp_path / "a.lmdb", decode=Told(8))[0][0].shape == (3, 8, 8)
    assert told == [known]
