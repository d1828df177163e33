"""write_store stores the files of torchvision's ImageFolder."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset
from typing_extensions import override

from dbloader import LMDBDataset, convert, open_store, write_store
from tests.support import jpegs

datasets = pytest.importorskip(
    "torchvision.datasets", reason="torchvision is not installed: scripts/frameworks torchvision"
)


def invert(label: int) -> int:
    return 2 - label


@pytest.mark.parametrize("workers", [0, 2])
def test_files_names_and_classes_of_an_image_folder_equal_those_of_convert(
    folder: Path, place: Path, tmp_path: Path, workers: int
) -> None:
    images = datasets.ImageFolder(folder)
    parts: ConcatDataset[Any] = ConcatDataset([Subset(images, range(4)), Subset(images, range(4, 12))])
    sources: list[Any] = [images, DataLoader(images, 5, num_workers=workers), parts]
    with open_store(place) as store:
        expected = list(store)
    for number, source in enumerate(sources):
        manifest = write_store(source, tmp_path / f"{number}.lmdb")
        assert manifest.classes == ("10", "2", "cats")
        with open_store(tmp_path / f"{number}.lmdb") as written:
            assert list(written) == expected
    assert images[0][0].mode == "RGB"  # the user's dataset is unchanged
    inverted = datasets.ImageFolder(folder, target_transform=invert)
    with pytest.warns(UserWarning, match="has a target_transform, so its classes may not name its labels"):
        manifest = write_store(inverted, tmp_path / "inverted.lmdb")
    with LMDBDataset(tmp_path / "inverted.lmdb") as dataset:
        assert dataset.targets.tolist() == [invert(record.label or 0) for record in expected]
        assert manifest.formats == {"JPEG": 12}


def test_file_outside_the_folder_of_an_image_folder_is_stored_with_its_own_name(folder: Path, tmp_path: Path) -> None:
    images, other = datasets.ImageFolder(folder), tmp_path / "other" / "a.jpg"
    other.parent.mkdir()
    other.write_bytes(Path(images.samples[0][0]).read_bytes())
    images.samples.append((str(other), 1))
    write_store(images, tmp_path / "s.lmdb")
    with open_store(tmp_path / "s.lmdb") as store:
        record = store[len(store) - 1]
        assert (record.name, record.image, record.label) == ("a.jpg", other.read_bytes(), 1)


def open_gray(path: str) -> Any:
    return Image.open(path).convert("L")


class Own(datasets.ImageFolder):  # type: ignore[misc, name-defined]
    @override
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image.rotate(180), label


@pytest.mark.parametrize("workers", [0, 1])
def test_changed_images_of_an_image_folder_are_stored_with_a_warning(
    folder: Path, tmp_path: Path, workers: int
) -> None:
    for number, images in enumerate(
        (
            datasets.ImageFolder(folder, lambda image: image.rotate(180)),
            datasets.ImageFolder(folder, loader=open_gray),
            Own(folder),
        )
    ):
        with pytest.warns(
            UserWarning, match=r"has image files, but .* stored as its transform, loader .*: convert\(.*folder"
        ):
            write_store(DataLoader(images, 5, num_workers=workers), tmp_path / f"{number}.lmdb")
        with open_store(tmp_path / f"{number}.lmdb") as store:
            for record, (image, label) in zip(store, (images[at] for at in range(12)), strict=True):
                assert isinstance(record.image, bytes)
                assert Image.open(io.BytesIO(record.image)).tobytes() == image.tobytes()
                assert (record.format, record.label) == ("PNG", label)


def test_datasets_of_arrays_are_stored_as_png_without_a_warning(tmp_path: Path) -> None:
    manifest = write_store(datasets.FakeData(4, (3, 32, 32), 2), tmp_path / "fake.lmdb")
    assert manifest.formats == {"PNG": 4}


def test_annotations_of_voc_detection_equal_those_of_convert(tmp_path: Path) -> None:
    root = tmp_path / "VOCdevkit" / "VOC2007"
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / name).mkdir(parents=True)
    for number, names in enumerate(("", "dog", "dog cat")):
        jpegs.draw(40, 30, seed=number).save(root / "JPEGImages" / f"{number}.jpg")
        box = "<bndbox><xmin>3</xmin><ymin>4</ymin><xmax>20</xmax><ymax>21</ymax></bndbox>"
        objects = "".join(
            f"<object><name>{name}</name><difficult>1</difficult>{box}</object>" for name in names.split()
        )
        size = "<size><width>40</width><height>30</height></size>"
        text = f"<annotation><filename>{number}.jpg</filename>{size}{objects}</annotation>"
        (root / "Annotations" / f"{number}.xml").write_text(text)
    (root / "ImageSets" / "Main" / "train.txt").write_text("0\n1\n2\n")
    convert(root / "JPEGImages", tmp_path / "c.lmdb", listing=root / "Annotations")
    with open_store(tmp_path / "c.lmdb") as store:
        expected, classes = [repr(record.fields) for record in store], store.manifest.classes
    voc = datasets.VOCDetection(tmp_path, year="2007", image_set="train")
    for number, source in enumerate((voc, Subset(voc, range(3)), DataLoader(voc, num_workers=1))):
        write_store(source, tmp_path / f"{number}.lmdb")
        with open_store(tmp_path / f"{number}.lmdb") as store:
            assert [repr(record.fields) for record in store] == expected
            assert store.manifest.classes == classes == ("cat", "dog")
