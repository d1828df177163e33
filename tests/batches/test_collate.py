"""Lists, boxes and other fields of varying length are collated into batches."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from dbloader import Collate, LMDBDataset, create_loader
from dbloader.decoding import RandomResizedCrop
from dbloader.errors import OptionError
from tests.support.images import photo
from tests.support.stores import store_samples

CLASSES = [[1, 0, 1], [0, 0, 1], [0, 1, 0], [1, 1, 1]]
FIELDS = ("image", "boxes", "box_labels", "iscrowd", "classes", "words")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stores") / "boxes.lmdb"
    store_samples([record(n) for n in range(4)], place)
    return place


def record(number: int) -> dict[str, Any]:
    boxes = np.array([[0, 0, 40, 30]] * number, np.float32).reshape(-1, 4)
    return {
        "image": photo(number), "label": number,
        "boxes": boxes, "box_labels": np.arange(number), "iscrowd": boxes[:, 0],
        "classes": CLASSES[number], "tokens": [*range(number + 1)], "words": ["a", "b"][: number + 1],
        "embedding": np.zeros(number + 1, np.float32), "shares": [0.5, number / 4], "yes": [True, False],
    }  # fmt: skip


def loader(dataset: Any, **options: Any) -> Any:
    known = {"batch_size": 4, "input_size": 16, "device": None, "num_workers": 0, "drop_last": False}
    return create_loader(dataset, **{**known, **options})


def check(batch: Any) -> None:
    assert batch["image"].shape == (4, 3, 16, 16)
    assert [tuple(boxes.shape) for boxes in batch["boxes"]] == [(n, 4) for n in range(4)]
    assert [labels.tolist() for labels in batch["box_labels"]] == [[*range(n)] for n in range(4)]
    assert [len(flags) for flags in batch["iscrowd"]] == [0, 1, 2, 3]
    assert batch["classes"].tolist() == CLASSES
    assert batch["words"] == [["a"], ["a", "b"], ["a", "b"], ["a", "b"]]


@pytest.mark.slow
def test_boxes_are_collated_to_lists_and_numbers_to_tensors(place: Path) -> None:
    dataset = LMDBDataset(place, fields=FIELDS)
    for engine in ({"worker_type": "threads"}, {"worker_type": "processes", "num_workers": 2}):
        check(next(iter(loader(dataset, **engine))))
    decoded = LMDBDataset(place, decode=RandomResizedCrop(16, scale=(1, 1), ratio=(4 / 3, 4 / 3)), fields=FIELDS)
    check(next(iter(DataLoader(decoded, 4, collate_fn=pickle.loads(pickle.dumps(Collate()))))))  # noqa: S301
    check(next(iter(loader(Subset(decoded, range(4)), input_size=None))))
    check(next(iter(loader(decoded, input_size=None, transform=None, collate_fn=Collate()))))


def test_boxes_are_a_list_even_if_every_image_has_the_same_number(place: Path) -> None:
    for indices in ([2], [3, 3], [0, 0]):
        batch = next(iter(loader(Subset(LMDBDataset(place, fields=("image", "boxes")), indices))))
        assert isinstance(batch["boxes"], list)
        assert [len(boxes) for boxes in batch["boxes"]] == indices


def test_renamed_fields_are_collated_like_the_original_fields(place: Path) -> None:
    batch = next(iter(loader(LMDBDataset(place, fields={"pixels": "image", "where": "boxes", "y": "classes"}))))
    assert [len(boxes) for boxes in batch["where"]] == [0, 1, 2, 3]
    assert batch["y"].tolist() == CLASSES


def test_numbers_keep_their_type(place: Path) -> None:
    batch = next(iter(loader(LMDBDataset(place, fields=("classes", "shares", "yes")), normalize=None)))
    assert {name: values.dtype for name, values in batch.items()} == {
        "classes": torch.int64, "shares": torch.float64, "yes": torch.bool
    }  # fmt: skip
    assert batch["shares"].tolist() == [[0.5, 0], [0.5, 0.25], [0.5, 0.5], [0.5, 0.75]]


def test_error_names_the_sample_that_lacks_a_field() -> None:
    image = torch.zeros(2)
    for samples in ([{"image": image, "label": 1}, {"image": image}], [(image, 1), (image,)]):
        with pytest.raises(OptionError, match=r"^sample 1 of the batch has no label"):
            Collate()(samples)


@pytest.mark.parametrize("name", ["tokens", "embedding"])
def test_ragged_field_raises_unless_lists_names_the_field(place: Path, name: str) -> None:
    dataset = LMDBDataset(place, fields=("image", "boxes", name))
    message = rf"^'{name}' has the shape \(2,\) in record 1 .* and \(1,\) in record 0 .*: pass collate_fn="
    with pytest.raises(OptionError, match=message):
        next(iter(loader(dataset)))
    with pytest.raises(OptionError, match=rf"^'{name}' has the shape \(2,\) in sample 1 of the batch and \(1,\) in "):
        Collate()(LMDBDataset(place, fields=("boxes", name))[:2])
    rule = Collate(lists=(name,))
    assert repr(rule) == f"Collate(lists=['{name}'])"
    batch = next(iter(loader(dataset, collate_fn=rule)))
    assert [len(values) for values in batch[name]] == [1, 2, 3, 4]
    assert all(isinstance(values, torch.Tensor) for values in batch[name])


def test_boxes_of_concatenated_stores_become_lists_as_of_one_store(place: Path) -> None:
    dataset = LMDBDataset(place, fields=("image", "boxes"), decode=RandomResizedCrop(16))
    both: ConcatDataset[Any] = ConcatDataset([Subset(dataset, range(2)), dataset])
    batch = next(iter(loader(both, input_size=None)))
    assert all(isinstance(boxes, torch.Tensor) and boxes.shape[1] == 4 for boxes in batch["boxes"])
    mixed: ConcatDataset[Any] = ConcatDataset([dataset, cast(Any, [dataset[0]])])
    with pytest.raises(
        OptionError, match=r"^'boxes' has the shape .* in sample \d of ConcatDataset .*: pass collate_fn="
    ):
        next(iter(loader(mixed, input_size=None)))


def test_images_of_different_sizes_are_refused_with_a_remedy() -> None:
    class Sizes(Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(3, 4 + index, 4), index

        def __len__(self) -> int:
            return 4

    message = r"^'image' has the shape \(3, 5, 4\) in sample 1 of Sizes .*: pass transform=RandomResizedCrop\(224\) or"
    with pytest.raises(OptionError, match=message):
        next(iter(loader(Sizes(), input_size=None, transform=None, normalize=None)))
    options = {"input_size": None, "transform": None, "normalize": None, "collate_fn": Collate(lists=("image",))}
    images, labels = next(iter(loader(Sizes(), **options)))
    assert [image.shape[1] for image in images] == [4, 5, 6, 7]
    assert labels.tolist() == [0, 1, 2, 3]


def test_target_transform_may_return_lists(place: Path) -> None:
    dataset = LMDBDataset(place, target_transform=lambda label: CLASSES[label])
    for options in ({"input_size": 16}, {"input_size": None, "transform": RandomResizedCrop(16)}):
        images, labels = next(iter(loader(dataset, **options)))
        assert images.shape == (4, 3, 16, 16)
        assert labels.tolist() == CLASSES
    ragged = LMDBDataset(place, target_transform=lambda label: [*range(label)])
    _, labels = next(iter(loader(ragged, collate_fn=Collate(lists=("label",)))))
    assert [values.tolist() for values in labels] == [[], [0], [0, 1], [0, 1, 2]]


def test_collate_requires_lists_to_be_field_names() -> None:
    with pytest.raises(OptionError, match="lists must be several names"):
        Collate("tokens")
    with pytest.raises(TypeError, match="lists must be names of fields, such as"):
        Collate([(torch.zeros(3), 1)])  # type: ignore[list-item] # what DataLoader(collate_fn=Collate) passes
