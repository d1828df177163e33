"""create_loader and LMDBDataset accept calls written for timm."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dbloader import LMDBDataset, Record, create_loader, write_store
from dbloader.errors import OptionError
from tests.support import jpegs
from tests.support.images import encoded


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> LMDBDataset:
    place = tmp_path_factory.mktemp("stores") / "photos.lmdb"
    write_store(((jpegs.draw(40 + n, 30, seed=n), n) for n in range(6)), place)
    return LMDBDataset(place)


def first(*arguments: Any, **options: Any) -> torch.Tensor:
    images: torch.Tensor = next(iter(create_loader(*arguments, num_workers=0, device=None, **options)))[0]
    return images


def test_positional_arguments_are_in_timms_order(dataset: LMDBDataset) -> None:
    images = first(dataset, (3, 16, 24), 4)
    assert images.shape == (4, 3, 16, 24)
    assert torch.equal(images, first(dataset, batch_size=4, input_size=(16, 24)))
    for arguments in ((dataset,), (dataset, 32)):
        with pytest.raises(TypeError, match=r"^batch_size must be given: create_loader\(dataset, input_size, batc"):
            create_loader(*arguments)


def test_filenames_equal_filenames_of_timm_datasets(tmp_path: Path) -> None:
    image = encoded(jpegs.draw(20, 20, seed=1), "PNG")
    write_store([Record("cats/1.png", 0, image), Record("2.png", 0, image)], tmp_path / "store.lmdb")
    with LMDBDataset(tmp_path / "store.lmdb") as named:
        assert named.filenames() == ["cats/1.png", "2.png"]
        assert named.filenames(basename=True) == ["1.png", "2.png"]
        assert (named.filename(0), named.filename(-2, basename=True)) == ("cats/1.png", "1.png")
        with pytest.raises(OptionError, match=r"^absolute=True asks for paths of files, but the images are in the sto"):
            named.filenames(absolute=True)
