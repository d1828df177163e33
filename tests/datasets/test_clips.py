"""Clips of consecutive frames of the videos in a store."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset

from dbloader import ClipDataset, LMDBDataset, convert, create_loader
from dbloader.decoding import DecodeTensor, MultiCrop, RandomResizedCrop
from dbloader.errors import OptionError, RecordIndexError
from tests.support.images import encoded, plant
from tests.support.samples import same

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = {"jump/a": 10, "jump/b": 3, "run/a": 7, "run/c": 8}
OPTIONS: dict[str, Any] = {"batch_size": 2, "input_size": 8, "is_training": True, "device": None, "num_workers": 0}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos of which each frame is one color: red is the video, green the frame."""
    root = tmp_path_factory.mktemp("videos")
    frames = {
        f"{video}/{frame:03}.png": encoded(Image.new("RGB", (20, 16), (number, frame, 0)), "PNG")
        for number, (video, count) in enumerate(LENGTHS.items())
        for frame in range(count)
    }
    convert(plant(root / "images", frames), root / "videos.lmdb")
    return root / "videos.lmdb"


def opened(place: Path, **options: Any) -> LMDBDataset:
    return LMDBDataset(place, **{"decode": DecodeTensor(), **options})


def colors(clips: ClipDataset) -> list[tuple[int, list[int]]]:
    """Return the video and the frames of each clip."""
    found = []
    for frames, _ in clips.__getitems__(range(len(clips))):
        assert frames.shape[1:] == (3, 16, 20)
        found.append((int(frames[0, 0, 0, 0]), frames[:, 1, 0, 0].tolist()))
        assert frames[:, 0].unique().tolist() == [found[-1][0]]
    return found


def test_clips_are_consecutive_frames_of_one_video(place: Path) -> None:
    clips = ClipDataset(opened(place), 4)
    assert colors(clips) == [
        (0, [0, 1, 2, 3]),
        (0, [4, 5, 6, 7]),
        (2, [0, 1, 2, 3]),
        (3, [0, 1, 2, 3]),
        (3, [4, 5, 6, 7]),
    ]
    assert clips.too_short == 1
    assert repr(clips).endswith("frames=4, stride=1, step=4): 5 clips, without 1 videos that are too short")
    assert [label for _, label in clips.__getitems__(range(5))] == [0, 0, 1, 1, 1]
    assert clips.first.tolist() == [0, 4, 13, 20, 24]
    assert colors(ClipDataset(opened(place), 3, stride=3)) == [(0, [0, 3, 6]), (2, [0, 3, 6]), (3, [0, 3, 6])]
    assert colors(ClipDataset(opened(place), 2, stride=4, step=2)) == [
        (0, [0, 4]), (0, [2, 6]), (0, [4, 8]), (2, [0, 4]), (2, [2, 6]), (3, [0, 4]), (3, [2, 6])
    ]  # fmt: skip
    assert len(ClipDataset(opened(place), 1)) == 28


def test_groups_may_be_anything_in_any_order(place: Path) -> None:
    groups = ["odd" if n % 2 else "even" for n in range(28)]
    clips = ClipDataset(opened(place), 5, groups=groups, step=100)
    assert [clips.frames_of(n).tolist() for n in range(2)] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    with pytest.raises(RecordIndexError, match="no clip 2 in"):
        clips[2]
    with pytest.raises(OptionError, match=r"the frames of clip 0 of .* have different labels, \[0, 0, "):
        ClipDataset(opened(place), 14, groups=groups)[0]


def test_every_field_of_a_dict_has_an_axis_of_frames(place: Path) -> None:
    fields = {"pixels": "image", "label": "label", "name": "name"}
    clip = ClipDataset(opened(place, fields=fields), 3, transform=torch.neg)[1]
    assert clip["pixels"].shape == (3, 3, 16, 20)
    assert clip["pixels"][:, 1, 0, 0].tolist() == [253, 252, 251]
    assert clip["label"].tolist() == [0, 0, 0]
    assert clip["name"] == ["jump/a/003.png", "jump/a/004.png", "jump/a/005.png"]
    batch = next(iter(create_loader(ClipDataset(LMDBDataset(place, fields=fields), 3), **OPTIONS)))
    assert batch["pixels"].shape == (2, 3, 3, 8, 8)


def test_a_plain_dataloader_gives_batches_of_clips(place: Path) -> None:
    frames, labels = next(iter(DataLoader(ClipDataset(opened(place), 4), batch_size=3)))
    assert (frames.shape, frames.dtype) == ((3, 4, 3, 16, 20), torch.uint8)
    assert labels.tolist() == [0, 0, 1]


def test_all_frames_of_a_clip_are_cropped_alike(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
    files = {f"c/{video}/{n:02}.png": encoded(Image.fromarray(noise), "PNG") for video in "ab" for n in range(4)}
    convert(plant(tmp_path / "images", files), tmp_path / "still.lmdb")
    clips = ClipDataset(LMDBDataset(tmp_path / "still.lmdb"), 4)
    for transform in ("auto", MultiCrop([(2, RandomResizedCrop(8))])):
        batch, again = (next(iter(create_loader(clips, **OPTIONS, transform=transform)))[0] for _ in range(2))
        assert same(batch, again)
        for crops in batch if isinstance(batch, list) else [batch]:
            assert crops.shape == (2, 4, 3, 8, 8)
            assert (crops == crops[:, :1]).all()
            assert not torch.equal(crops[0], crops[1])


ENGINES: list[dict[str, Any]] = [
    {"workers": "threads", "num_workers": 2}, {"workers": "processes", "num_workers": 2, "persistent_workers": False}
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES, ids=["threads", "processes"])
def test_clips_are_shuffled_the_same_by_any_workers_and_after_going_on(place: Path, engine: dict[str, Any]) -> None:
    clips = Subset(ClipDataset(LMDBDataset(place), 2), range(12))
    first = create_loader(clips, **OPTIONS)
    expected = [[*first], [*first]]
    assert expected[0][0][0].shape == (2, 2, 3, 8, 8)
    assert expected[0][0][0].dtype is torch.float32
    other: Any = create_loader(clips, **{**OPTIONS, **engine})
    assert same([*other], expected[0])
    iterator = iter(other)
    begun = [*itertools.islice(iterator, 2)]
    state = other.state_dict()
    other.close()
    resumed: Any = create_loader(clips, **{**OPTIONS, **engine})
    resumed.load_state_dict(state)
    assert same([*begun, *resumed], expected[1])


def test_wrong_options_are_errors_that_say_what_to_do(place: Path) -> None:
    with pytest.raises(OptionError, match=r"no video has 11 frames, .*: the longest of 4 has 10"):
        ClipDataset(opened(place), 6, stride=2)
    with pytest.raises(OptionError, match=r"groups must have the shape \(28,\), .* got \(3,\)"):
        ClipDataset(opened(place), groups=[1, 2, 3])
    with pytest.raises(OptionError, match="would change each frame of a clip differently"):
        ClipDataset(opened(place, transform=torch.neg))
    with pytest.raises(OptionError, match=r"frames of clip 1 of .* cannot be stacked .*: pass a Decoder"):
        ClipDataset(LMDBDataset(place), 3)[1]
    for name in ("frames", "stride", "step"):
        wrong: dict[str, Any] = {name: 0}
        with pytest.raises(OptionError, match=f"{name} must be"):
            ClipDataset(opened(place), **wrong)
    with pytest.raises(TypeError, match="dataset must be an LMDBDataset or MongoDataset"):
        ClipDataset([1, 2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="transform must be a callable"):
        ClipDataset(opened(place), transform=3)  # type: ignore[arg-type]
