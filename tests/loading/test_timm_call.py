"""create_loader takes the dataset, the size and the batch size in timm's order, and the configuration of a model."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from dbloader import LMDBDataset, Record, create_loader, write_store
from dbloader.decoding import RandomResizedCrop, ResizeCenterCrop
from dbloader.errors import OptionError
from tests.support import jpegs
from tests.support.images import encoded

# What timm.data.resolve_data_config returns for one of its models.
CONFIG: dict[str, Any] = {
    "input_size": (3, 16, 16),
    "interpolation": "bicubic",
    "mean": (0.5, 0.4, 0.3),
    "std": (0.2, 0.3, 0.4),
    "crop_pct": 0.5,
    "crop_mode": "center",
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    place = tmp_path_factory.mktemp("stores") / "photos.lmdb"
    write_store(((jpegs.draw(40 + n, 30, seed=n), n) for n in range(6)), place)
    return LMDBDataset(place)


def first(*arguments: Any, **options: Any) -> torch.Tensor:
    images: torch.Tensor = next(iter(create_loader(*arguments, num_workers=0, device=None, **options)))[0]
    return images


def test_size_and_batch_size_stand_where_they_stand_in_timms_call(dataset: LMDBDataset) -> None:
    images = first(dataset, (3, 16, 24), 4)
    assert images.shape == (4, 3, 16, 24)
    assert torch.equal(images, first(dataset, batch_size=4, input_size=(16, 24)))
    for arguments in ((dataset,), (dataset, 32)):
        with pytest.raises(TypeError, match=r"^batch_size must be given: create_loader\(dataset, input_size, batc"):
            create_loader(*arguments)


def test_the_data_config_of_a_model_decides_how_images_are_resized_and_cropped(dataset: LMDBDataset) -> None:
    common: dict[str, Any] = {"batch_size": 4, "mean": CONFIG["mean"], "std": CONFIG["std"]}
    evaluation = ResizeCenterCrop(16, 0.5, interpolation="bicubic")
    assert torch.equal(first(dataset, batch_size=4, **CONFIG), first(dataset, transform=evaluation, **common))
    training = RandomResizedCrop(16, interpolation="bicubic")
    expected = first(dataset, transform=training, is_training=True, **common)
    assert torch.equal(first(dataset, batch_size=4, is_training=True, **CONFIG), expected)
    assert not torch.equal(
        expected, first(dataset, batch_size=4, is_training=True, **{**CONFIG, "interpolation": "bilinear"})
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"crop_mode": "squash"},
            "crop_mode must be 'center' or None, got 'squash': for timm's other modes pass",
        ),
        ({"crop_pct": 1.5}, "crop_pct must be"),
        ({"interpolation": "random"}, "interpolation must be one of"),
    ],
)
def test_what_our_decoders_do_not_do_is_refused(dataset: LMDBDataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match="^" + re.escape(message)):
        create_loader(dataset, **{"batch_size": 4, **CONFIG, **options})


def test_the_files_of_a_store_are_named_as_timms_datasets_name_theirs(tmp_path: Path) -> None:
    image = encoded(jpegs.draw(20, 20, seed=1), "PNG")
    write_store([Record("cats/1.png", 0, image), Record("2.png", 0, image)], tmp_path / "store.lmdb")
    with LMDBDataset(tmp_path / "store.lmdb") as named:
        assert named.filenames() == ["cats/1.png", "2.png"]
        assert named.filenames(basename=True) == ["1.png", "2.png"]
        assert (named.filename(0), named.filename(-2, basename=True)) == ("cats/1.png", "1.png")
        with pytest.raises(OptionError, match=r"^absolute=True asks for paths of files, but the images are in the sto"):
            named.filenames(absolute=True)
