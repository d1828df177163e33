"""A user's transform is found as Python finds it, and whatever it returns is shown as a picture."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image

from dbloader import Record, open_store, write_store
from dbloader.decoding import RandomResizedCrop
from dbloader.errors import OptionError
from dbloader.viewing.server import load_transform
from dbloader.viewing.training import Options, show_batch, show_image, to_png
from tests.support.images import photo

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
from torch import nn
from dbloader.decoding import RandomResizedCrop
class Turn(nn.Module):  # as torchvision's
    def __init__(self, degrees=90): super().__init__()
    def forward(self, image): return image.rotate(90)
ready = Turn()
decoder = RandomResizedCrop(8)
size = 8
def plain(image): return image.rotate(90)
def factory(degrees=90): return Turn(degrees)
def nothing(): return None
def failing(image): raise ValueError("the image is too blue")
def broken(): raise RuntimeError("no such file: classes.txt")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module in the current directory, which only this test can import."""
    name = f"transforms_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


def test_a_transform_is_an_object_a_function_or_what_a_function_without_arguments_returns(module: str) -> None:
    for name in ("ready", "factory", "Turn"):
        assert type(load_transform(f"{module}:{name}")).__name__ == "Turn"
    assert isinstance(load_transform(f"{module}:decoder"), RandomResizedCrop)
    assert load_transform(f"{module}:plain").__name__ == "plain"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("train", "a transform must be MODULE:NAME, such as train:make_transform, got 'train'"),
        (
            "no_such_module:x",
            "no_such_module:x cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("{}:absent", "cannot be loaded: AttributeError: .*absent"),
        ("{}:broken", "cannot be loaded: RuntimeError: no such file: classes.txt"),
        ("{}:size", "size must be a callable, or a function that returns one, got 8"),
        ("{}:nothing", "nothing must be a callable, or a function that returns one, got None"),
    ],
)
def test_a_transform_that_cannot_be_loaded_is_told(module: str, name: str, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        load_transform(name.format(module))


def decoded(value: Any) -> tuple[Any, str]:
    png, note = to_png(value)
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image).tolist(), note


ROW = np.array([[0, 100, 255]], np.uint8)
NORMALIZED = torch.tensor([[-2.0, 0.0, 2.0]])


@pytest.mark.parametrize(
    ("value", "expected", "note"),
    [
        (ROW, ROW.tolist(), ""),
        (torch.from_numpy(ROW)[None], ROW.tolist(), ""),
        (torch.from_numpy(np.stack([ROW] * 3)), np.stack([ROW] * 3, -1).tolist(), ""),
        (Image.fromarray(ROW), ROW.tolist(), ""),
        (Image.fromarray(np.stack([ROW] * 4, -1)), np.stack([ROW] * 4, -1).tolist(), ""),
        (Image.fromarray(ROW > 0), np.stack([[[0, 255, 255]]] * 3, -1).tolist(), ""),
        (NORMALIZED, [[0, 128, 255]], "-2 to 2 shown as black to white"),
        (NORMALIZED.bfloat16(), [[0, 128, 255]], "-2 to 2 shown as black to white"),
        (torch.tensor([[0, 0.2, 0.5]]), [[0, 51, 128]], "0 to 1 shown as black to white"),
        (ROW > 0, [[0, 255, 255]], "0 to 1 shown as black to white"),
        (ROW.astype(np.int64) * 256, [[0, 100, 255]], "0 to 6.528e+04 shown as black to white"),
        (Image.fromarray(ROW.astype(np.uint16) * 2), [[0, 100, 255]], "0 to 510 shown as black to white"),
        (
            np.array([[np.nan, 0, 4]]),
            [[0, 0, 255]],
            "0 to 4 shown as black to white; 1 values are not finite, shown as 0",
        ),
        (np.full((1, 1), 7.0), [[0]], "7 to 7 shown as black to white"),
        (np.stack([ROW] * 2, -1), ROW.tolist(), "only channel 1 of 2"),
        (torch.from_numpy(np.stack([ROW] * 9)), np.stack([ROW] * 3, -1).tolist(), "only channels 1 to 3 of 9"),
        ([ROW, ROW], np.stack([[[0, 100, 255] * 2]] * 3, -1).tolist(), ""),
    ],
)
def test_results_of_any_type_and_range_are_shown(value: Any, expected: Any, note: str) -> None:
    assert decoded(value) == (expected, note)


@pytest.mark.parametrize("value", [None, "text", 3, {"image": ROW}, np.zeros(3), np.zeros((0, 3)), ROW.astype("c8")])
def test_what_is_no_image_is_told(value: Any) -> None:
    with pytest.raises(OptionError, match="a transform must return an image to be shown: PIL, tensor or array, got "):
        to_png(value)


def test_a_transform_of_pil_images_has_no_crop_and_its_error_is_told(module: str, tmp_path: Path) -> None:
    write_store([Record(f"{n}.jpg", n, photo(n)) for n in range(4)], tmp_path / "a.lmdb")
    with open_store(tmp_path / "a.lmdb") as store:
        batch = show_batch(store, Options(batch_size=4), load_transform(f"{module}:plain"))
        assert [sample["crop"] for sample in batch["samples"]] == [None] * 4
        assert not batch["repeatable"]
        assert show_batch(store, Options(batch_size=4), load_transform(f"{module}:decoder"))["repeatable"]
        png, _ = show_image(store, 2, 0, Options(), load_transform(f"{module}:plain"))
        with Image.open(io.BytesIO(png)) as image, Image.open(io.BytesIO(photo(2))) as original:
            assert np.array_equal(np.asarray(image), np.asarray(original.rotate(90)))
        with pytest.raises(OptionError, match="the transform failed: ValueError: the image is too blue"):
            show_image(store, 0, 0, Options(), load_transform(f"{module}:failing"))
