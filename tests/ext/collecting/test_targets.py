"""Samples (image, target), as torchvision's datasets give them, come back as the same samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from dbloader import LMDBDataset, convert, open_store, write_store
from dbloader.errors import FieldError, OptionError

IMAGE = Image.new("RGB", (40, 30), "red")
MASK = Image.new("L", (40, 30), 7)
XML = (
    "<annotation><filename>a.png</filename><size><width>40</width><height>30</height></size>"
    "<object><name>dog</name><difficult>1</difficult><bndbox><xmin>3</xmin><ymin>4</ymin><xmax>20</xmax>"
    "<ymax>21</ymax></bndbox></object><object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>40</xmax>"
    "<ymax>30</ymax></bndbox></object></annotation>"
)
BOX = {"xmin": "3", "ymin": "4", "xmax": "20", "ymax": "21"}
ALL = {"xmin": "1", "ymin": "1", "xmax": "40", "ymax": "30"}
VOC: Any = {  # what torchvision's VOCDetection makes of XML
    "annotation": {
        "filename": "a.png",
        "size": {"width": "40", "height": "30"},
        "object": [{"name": "dog", "difficult": "1", "bndbox": BOX}, {"name": "cat", "bndbox": ALL}],
    }
}


@pytest.mark.parametrize("workers", [None, 0, 1])
@pytest.mark.parametrize("target", [1.5, np.float32(1.5), np.float64(1.5), np.array(1.5), torch.tensor(1.5)])
def test_float_becomes_the_target_of_the_store(tmp_path: Path, target: Any, workers: int | None) -> None:
    samples: Any = [(IMAGE, target)] * 3
    manifest = write_store(
        samples if workers is None else DataLoader(samples, num_workers=workers), tmp_path / "s.lmdb"
    )
    assert (manifest.target, manifest.columns, manifest.labelled) == ("target", {"target": "float"}, 0)
    with LMDBDataset(tmp_path / "s.lmdb") as dataset:
        assert (dataset[0][1], dataset.targets.tolist()) == (1.5, [1.5] * 3)


@pytest.mark.parametrize("target", [3, np.int32(3), np.array(3), torch.tensor(3)])
def test_integer_stays_the_label(tmp_path: Path, target: Any) -> None:
    manifest = write_store([(IMAGE, target), (IMAGE, None)], tmp_path / "s.lmdb")
    assert (manifest.target, manifest.label_counts, manifest.fields) == ("label", {3: 1}, {})


@pytest.mark.parametrize(
    "make", [torch.tensor, np.array, lambda row: torch.tensor(row).bool(), lambda row: np.float32(row)]
)
def test_zeros_and_ones_become_the_list_of_classes(tmp_path: Path, make: Any) -> None:
    rows = [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    write_store([(IMAGE, make(row)) for row in rows], tmp_path / "s.lmdb", classes=["a", "b", "c"])
    with LMDBDataset(tmp_path / "s.lmdb") as dataset:
        assert [record.fields for record in dataset.records(range(3))] == [
            {"labels": [0, 2]},
            {"labels": []},
            {"labels": [1]},
        ]
        assert (dataset.targets.tolist(), dataset.classes) == (rows, ["a", "b", "c"])
        write_store(dataset, tmp_path / "copy.lmdb")
        write_store(dataset, tmp_path / "again.lmdb", image_format="PNG")
    for name in ("copy", "again"):
        with LMDBDataset(tmp_path / f"{name}.lmdb") as dataset:
            assert (dataset.targets.tolist(), dataset.classes) == (rows, ["a", "b", "c"])


def test_label_and_mask_become_a_label_and_a_file_field(tmp_path: Path) -> None:
    write_store([(IMAGE, (index, MASK)) for index in range(3)], tmp_path / "s.lmdb")
    with LMDBDataset(tmp_path / "s.lmdb", fields=("label", "mask")) as dataset:
        assert dataset.manifest.file_fields == ("mask",)
        assert (dataset[2]["label"], dataset[2]["mask"].tobytes()) == (2, MASK.tobytes())
    with LMDBDataset(tmp_path / "s.lmdb") as dataset:
        assert [label for _, label in dataset[:]] == [0, 1, 2]


def test_annotation_of_voc_becomes_the_fields_that_convert_makes(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "xml").mkdir()
    IMAGE.save(tmp_path / "images" / "a.png")
    (tmp_path / "xml" / "a.xml").write_text(XML)
    convert(tmp_path / "images", tmp_path / "c.lmdb", listing=tmp_path / "xml")
    write_store([(IMAGE, VOC)], tmp_path / "s.lmdb", classes=["cat", "dog"])
    with open_store(tmp_path / "c.lmdb") as converted, open_store(tmp_path / "s.lmdb") as written:
        for name, value in converted[0].fields.items():
            np.testing.assert_array_equal(written[0].fields[name], value)
        assert converted[0].fields.keys() == written[0].fields.keys()
        assert converted.manifest.classes == written.manifest.classes


@pytest.mark.parametrize(
    ("sample", "options", "message"),
    [
        ((IMAGE, True), {}, "field 'label' must be an int, .* got True: give .*fields="),
        ((IMAGE, ["a", "b"]), {}, r"field 'label' must be an int, .* got \['a', 'b'\]: give .*fields="),
        ((IMAGE, (1, 2)), {}, r"field 'label' must be an int, .* got \(1, 2\)"),
        ((IMAGE, torch.tensor([1, 0])), {}, r"got 2 numbers .* and 0 names: pass 2 names as classes="),
        ((IMAGE, torch.tensor([1, 5])), {"classes": ["a", "b"]}, r"one number, 0 or 1, for each .* got 2 numbers "),
        ((IMAGE, VOC), {}, "its annotation has the class 'cat': give all names in their order as classes="),
        ((IMAGE.resize((20, 15)), VOC), {"classes": ["cat", "dog"]}, "has 20 x 15 pixels, but its annotations are for"),
        ((torch.zeros(3, 30, 40), VOC), {"classes": ["cat", "dog"]}, "boxes need the size of their image: give a PIL"),
        (
            {"image": IMAGE, "label": 1.5, "target": 2},
            {},
            "'label' becomes a field 'target', but the sample has such a field too: rename it",
        ),
    ],
)
def test_unclear_target_is_refused_with_a_remedy(tmp_path: Path, sample: Any, options: Any, message: str) -> None:
    with pytest.raises(FieldError, match=f"^sample 0: .*{message}"):
        write_store([sample], tmp_path / "s.lmdb", **options)
    assert not (tmp_path / "s.lmdb").exists()


def test_targets_of_different_kinds_are_refused(tmp_path: Path) -> None:
    for first, second in ((1.5, 2), (2, 1.5), (MASK, 1)):
        with pytest.raises(FieldError, match=r"^sample 2: field 'label' is of the kind .*, but .* in earlier samples"):
            write_store([(IMAGE, first), (IMAGE, None), (IMAGE, second)], tmp_path / "s.lmdb")


@pytest.mark.parametrize(
    ("attributes", "classes"),
    [
        ({"classes": np.array(["dog", "cat"])}, ("dog", "cat")),
        ({"class_to_idx": {"cat": 1, "dog": 0}}, ("dog", "cat")),
        ({"classes": None, "class_to_idx": {"cat": 0, "dog": 1}}, ("cat", "dog")),
        ({"class_to_idx": {"cat": 1, "dog": 2}}, ()),
        ({"class_to_idx": {"tench": 0, "Tinca tinca": 0}}, ()),
        ({"class_to_idx": {"cat": "0"}}, ()),
        ({"classes": [("tench", "Tinca tinca")]}, ()),
        ({}, ()),
    ],
)
def test_names_of_classes_are_found_in_a_dataset(
    tmp_path: Path, attributes: dict[str, Any], classes: tuple[str, ...]
) -> None:
    samples = type("Named", (list,), attributes)([(IMAGE, 0)])
    assert write_store(samples, tmp_path / "s.lmdb").classes == classes


class Numbered(list[Any]):
    """Samples of a dataset whose labels are not the positions of its classes."""

    classes, class_to_idx = ["cat", "dog"], {"cat": 1, "dog": 0}


def test_classes_whose_numbers_contradict_them_are_an_error(tmp_path: Path) -> None:
    samples = Numbered([(IMAGE, 1)])
    with pytest.raises(
        OptionError, match=r"gives 'cat' the label 1, but its position in classes is 0: pass .* classes="
    ):
        write_store(samples, tmp_path / "s.lmdb")
    assert write_store(samples, tmp_path / "s.lmdb", classes=["dog", "cat"]).classes == ("dog", "cat")


class Named(list[Any]):
    """Samples of a dataset of torchvision with names of classes."""

    def __init__(self, samples: Any, classes: Any, **attributes: Any) -> None:
        super().__init__(samples)
        self.classes = classes
        vars(self).update(attributes)


def test_cats_and_dogs_of_oxford_pets_have_their_own_names(tmp_path: Path) -> None:
    pets = {"classes": ["Abyssinian", "Beagle"], "bin_classes": ["Cat", "Dog"]}
    samples = Named([(IMAGE, 0), (IMAGE, 1)], **pets, _target_types=["binary-category"])
    write_store(samples, tmp_path / "s.lmdb")
    assert LMDBDataset(tmp_path / "s.lmdb").classes == ["Cat", "Dog"]
    samples = Named([(IMAGE, 0), (IMAGE, 1)], **pets, _target_types=["category"])
    write_store(samples, tmp_path / "s.lmdb", overwrite=True)
    assert LMDBDataset(tmp_path / "s.lmdb").classes == ["Abyssinian", "Beagle"]


def test_target_transform_beside_classes_is_a_warning(tmp_path: Path) -> None:
    samples = Named([(IMAGE, 1)], ["cat", "dog"], target_transform=abs)
    with pytest.warns(UserWarning, match="has a target_transform, so its classes may not name its labels: pass"):
        write_store(samples, tmp_path / "s.lmdb")
    write_store(samples, tmp_path / "s.lmdb", classes=samples.classes, overwrite=True)
    assert LMDBDataset(tmp_path / "s.lmdb").classes == ["cat", "dog"]
