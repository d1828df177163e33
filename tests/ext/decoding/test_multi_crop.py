"""MultiCrop returns the crops of its decoders, and decodes the image once."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image
from torch.utils.data import DataLoader

from dbloader import LMDBDataset, create_loader, write_store
from dbloader.decoding import DecodeTensor, MultiCrop, RandomCrop, RandomResizedCrop, ResizeCenterCrop
from dbloader.device import RandomErasing
from dbloader.errors import OptionError
from dbloader.images.tiled import encode_tiled
from tests.support.images import encoded, photo
from tests.support.jpegs import draw, turned_exif
from tests.support.samples import same

DINO = MultiCrop([(2, RandomResizedCrop(32, scale=(0.4, 1))), (6, RandomResizedCrop((12, 16), scale=(0.05, 0.4)))])
MIXED = MultiCrop([(1, ResizeCenterCrop(24)), (3, RandomCrop(10, padding=4)), (1, RandomResizedCrop(8))])
SMALL = MultiCrop([(2, RandomResizedCrop(16, scale=(0.01, 0.05)))])


def turned() -> bytes:
    return encoded(draw(200, 150), "JPEG", exif=turned_exif())


def one_by_one(decode: MultiCrop, image: Any, row: Any, **known: Any) -> list[torch.Tensor]:
    outputs, first = [], 0
    for count, decoder in decode.crops:
        for _ in range(count):
            outputs.append(decoder(image, row[first : first + decoder.draws], **known))
            first += decoder.draws
    return outputs


def rows(decode: MultiCrop, count: int) -> Any:
    return np.random.default_rng(0).random((count, decode.draws))


@pytest.mark.parametrize("decode", [DINO, MIXED, SMALL])
@pytest.mark.parametrize("known_intact", [False, True])
def test_each_crop_equals_output_of_its_decoder(decode: MultiCrop, known_intact: bool) -> None:
    tiled, lengths = encode_tiled(draw(200, 150), quality=90, subsampling="4:2:0")
    images: list[tuple[Any, Any]] = [(photo(1, 200, 150), None), (tiled, lengths), (tiled, None)]
    images += [(encoded(draw(60, 90), "PNG"), None), (np.asarray(draw(60, 90)), None), (draw(60, 90, "L"), None)]
    for image, tiles in images:
        for row in rows(decode, 4):
            known = {"tiles": tiles, "known_intact": known_intact}
            outputs = decode(image, row, **known)
            assert len(outputs) == sum(count for count, _ in decode.crops)
            assert same(outputs, one_by_one(decode, image, row, **known))
            assert len({output.untyped_storage().data_ptr() for output in outputs}) == len(outputs)


def test_scaled_crops_stay_close_to_full_crops() -> None:
    smooth = Image.effect_mandelbrot((640, 480), (-2, -1.2, 0.8, 1.2), 60).convert("RGB").resize((1280, 960))
    for image in (encoded(smooth, "JPEG", quality=95), encoded(smooth, "PNG"), np.asarray(smooth)):
        scaled, full = (
            MultiCrop(
                [(2, RandomResizedCrop(96, scale=(0.5, 1), scaled=scaled)), (1, RandomResizedCrop(32, scaled=scaled))]
            )
            for scaled in (True, False)
        )
        for row in rows(full, 3):
            for small, large in zip(scaled(image, row), full(image, row), strict=True):
                assert (small.int() - large.int()).abs().float().mean() < 3


class Decoded(list[int]):
    """Records how many pixels each call of simplejpeg decodes."""


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Decoded:
    counts, decode_jpeg = Decoded(), simplejpeg.decode_jpeg

    def count(*arguments: Any, **options: Any) -> Any:
        pixels = decode_jpeg(*arguments, **options)
        counts.append(pixels.shape[0] * pixels.shape[1])
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", count)
    return counts


def test_eight_crops_decode_the_upper_rows_once(decoded: Decoded) -> None:
    for row in rows(DINO, 5):
        DINO(photo(1, 200, 150), row, known_intact=True)
    assert len(decoded) == 5
    at_the_top = np.zeros(SMALL.draws)
    SMALL(photo(1, 200, 150), at_the_top, known_intact=True)
    assert decoded[-1] < 200 * 150 / 2


def test_wrong_crops_are_refused() -> None:
    crop = RandomResizedCrop(8)
    for wrong in (3, [crop], [(crop, 2)], [(2, crop, 1)], [(2, len)], None):
        with pytest.raises(TypeError, match="crops must be pairs such as"):
            MultiCrop(wrong)  # type: ignore[arg-type]
    for several in ([], [(0, crop)], [(1, DecodeTensor())], [(1, MultiCrop([(1, crop)]))]):
        with pytest.raises(OptionError, match="crops"):
            MultiCrop(several)
    with pytest.raises(OptionError, match="same exif_transpose"):
        MultiCrop([(1, crop), (1, RandomResizedCrop(8, exif_transpose=True))])
    with pytest.raises(OptionError, match=f"must have {DINO.draws} values for each image"):
        DINO(photo(), [0.5])
    with pytest.raises(OptionError, match="several crops of an image"):
        DINO.choose_crop([], 10, 10)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stores") / "photos.lmdb"
    mask = np.zeros((30, 40), np.uint8)
    write_store([{"image": photo(n), "label": n, "mask": mask} for n in range(10)], place)
    return place


def shapes(batch: Any) -> list[tuple[int, ...]]:
    return [tuple(crop.shape) for crop in batch]


SHAPES = [(4, 3, 32, 32)] * 2 + [(4, 3, 12, 16)] * 6


def test_dataloader_collates_crops_to_a_list(place: Path) -> None:
    for dataset in (LMDBDataset(place, decode=DINO), LMDBDataset(place, transform=DINO)):
        images, labels = next(iter(DataLoader(dataset, batch_size=4)))
        assert shapes(images) == SHAPES
        assert labels.tolist() == [0, 1, 2, 3]


OPTIONS: dict[str, Any] = {"batch_size": 4, "is_training": True, "device": None, "num_workers": 0}
ENGINES: list[dict[str, Any]] = [
    {"worker_type": "threads", "num_workers": 2}, {"worker_type": "processes", "num_workers": 2}
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES, ids=["threads", "processes"])
def test_crops_are_equal_for_any_workers_and_after_resuming(place: Path, engine: dict[str, Any]) -> None:
    def loader(**options: Any) -> Any:
        preparation = RandomErasing(0.9)
        return create_loader(LMDBDataset(place), transform=DINO, preparation=preparation, **{**OPTIONS, **options})

    def crops(batches: Any) -> list[list[torch.Tensor]]:
        return [[*images, labels] for images, labels in batches]

    first = loader()
    expected = [crops(first), crops(first)]
    assert shapes(expected[0][0][:-1]) == SHAPES
    assert all(image.dtype is torch.float32 for image in expected[0][0][:-1])
    assert not same(*expected)
    other = loader(**engine)
    assert same(crops(other), expected[0])
    iterator = iter(other)
    begun = crops(itertools.islice(iterator, 1))
    state = other.state_dict()
    other.close()
    resumed = loader(**engine)
    resumed.load_state_dict(state)
    assert same(begun + crops(resumed), expected[1])


def test_masks_are_refused_with_several_crops(place: Path) -> None:
    dataset = LMDBDataset(place, decode=DINO, fields=("image", "mask"))
    with pytest.raises(OptionError, match=r"'mask' of record 0 .* seems to be a mask"):
        dataset[0]
