"""The target of a sample is the label, or another field: a number, a text, several classes or a mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset

from dbloader import Collate, LMDBDataset, copy_store, create_loader, mix, open_store, write_store
from dbloader.decoding import RandomResizedCrop
from dbloader.errors import OptionError
from dbloader.records.manifest import FIELD_CLASSES, TARGET
from dbloader.stores.open import create_store
from tests.support.images import photo
from tests.support.jpegs import draw

LENGTH = 9
NAMES = ["red", "green", "blue"]
LISTS = [[0], [1, 2], [], [0, 1, 2], [2], [0], [1], [0, 2], [2]]
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "score": (torch.float32, [index / 4 for index in range(LENGTH)]),
    "age": (torch.int64, [index - 3 for index in range(LENGTH)]),
    "old": (torch.bool, [index % 3 == 0 for index in range(LENGTH)]),
    "caption": (str, [f"number {index}" for index in range(LENGTH)]),
}


def write(place: Path, target: str | None = None, **values: list[Any]) -> Path:
    """Write a store of photographs with these further fields; ``target`` is the store's target."""
    source = {} if target is None else {TARGET: target}
    records = [
        {"image": photo(index), "name": f"{index}.png", "label": index % 3}
        | {name: column[index] for name, column in values.items()}
        for index in range(LENGTH)
    ]
    plain = write_store(records, place.with_suffix(".plain"), classes=NAMES)
    with open_store(place.with_suffix(".plain")) as store, create_store(place) as writer:
        writer.write(store.encoded(range(LENGTH)))
        writer.finish(classes=plain.classes, source=source)
    return place


def batch_of(dataset: Any, **options: Any) -> Any:
    defaults: dict[str, Any] = {"batch_size": 4, "device": None, "input_size": 8, "num_workers": 0}
    return next(iter(create_loader(dataset, **defaults | options)))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    columns: Any = {name: column for name, (_, column) in VALUES.items()}
    return write(tmp_path_factory.mktemp("targets") / "s.lmdb", labels=LISTS, **columns)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("workers", [(0, "threads"), (2, "threads"), (1, "processes")])
def test_field_is_the_target_of_samples_batches_and_targets(place: Path, name: str, workers: tuple[int, str]) -> None:
    kind, values = VALUES[name]
    dataset = LMDBDataset(place, target=name)
    assert [target for _, target in dataset[:]] == values == dataset.targets.tolist()
    assert type(dataset[0][1]) is type(values[0])
    assert (dataset.samples[-1], dataset.classes) == (("8.png", values[-1]), [])
    doubled = LMDBDataset(place, target=name, target_transform=lambda value: value * 2)
    assert doubled[1][1] == values[1] * 2
    subset = Subset(dataset, [0, 1, 2, 3])
    sources: list[Any] = [dataset, subset, ConcatDataset([subset, dataset])]
    for source in sources:
        targets = batch_of(source, num_workers=workers[0], worker_type=workers[1])[1]
        assert list(targets) == values[:4]
        assert (list if kind is str else targets.dtype) in (list, kind)
    selected = LMDBDataset(place, target=name, where="index>=2")
    assert selected[0][1] == selected.targets[0] == values[2]
    mixed = mix({LMDBDataset(place, target=name, where="index<1"): 1, dataset: 1})
    targets = batch_of(mixed, num_workers=workers[0], worker_type=workers[1])[1]
    assert [target == values[0] for target in targets].count(True) >= 2


def test_lists_of_classes_become_zeros_and_ones_with_the_names_of_the_classes(tmp_path: Path) -> None:
    place = write(tmp_path / "s.lmdb", "labels", labels=LISTS)
    dataset = LMDBDataset(place)
    rows = [[float(number in some) for number in range(3)] for some in LISTS]
    assert [target.tolist() for _, target in dataset[:]] == rows
    assert (dataset.classes, dataset.class_to_idx["blue"]) == (NAMES, 2)
    assert dataset[2][1].dtype is torch.float32
    assert (dataset.targets.dtype, dataset.targets.tolist()) == (np.uint8, rows)
    assert LMDBDataset(place, where="index>=6").targets.tolist() == rows[6:]
    sources: list[Any] = [dataset, Subset(dataset, range(4)), ConcatDataset([dataset, dataset]), mix({place: 1})]
    for source in sources:
        targets = batch_of(source)[1]
        assert (targets.dtype, targets.shape) == (torch.float32, (4, 3))
    assert batch_of(dataset)[1].tolist() == rows[:4]
    named = LMDBDataset(place, fields={"pixels": "image", "labels": "labels", "name": "name"})
    assert batch_of(named)["labels"].tolist() == rows[:4]
    assert LMDBDataset(place, target="label").targets.tolist() == [index % 3 for index in range(LENGTH)]


def test_classes_of_a_list_keep_their_names_in_a_copy_with_other_classes(tmp_path: Path) -> None:
    place = write(tmp_path / "s.lmdb", "labels", labels=LISTS)
    copy_store(place, tmp_path / "c.lmdb", where="class:red or class:blue", classes=["blue", "red"])
    copied = LMDBDataset(tmp_path / "c.lmdb")
    assert copied.manifest.classes == ("red", "blue")
    assert copied.classes == NAMES
    assert copied.manifest.source[FIELD_CLASSES] == {"labels": NAMES}
    assert copied[1][1].tolist() == [0, 0, 0]  # record 2


def test_target_of_the_manifest_is_the_default_where_samples_contain_it(tmp_path: Path) -> None:
    place = write(tmp_path / "s.lmdb", "score", score=VALUES["score"][1])
    assert LMDBDataset(place)[3][1] == 0.75
    assert "Target: score" in repr(LMDBDataset(place))
    assert LMDBDataset(place, fields=("image", "label"), target_transform=str)[3]["label"] == "0"
    batch = batch_of(LMDBDataset(place, fields=("image", "label", "score"), target_transform=lambda value: value + 1))
    assert (batch["label"].tolist(), batch["score"].tolist()) == ([0, 1, 2, 0], [1, 1.25, 1.5, 1.75])
    assert batch["score"].dtype is torch.float32
    copy_store(place, tmp_path / "copy.lmdb", where="index>1")
    assert LMDBDataset(tmp_path / "copy.lmdb")[0][1] == 0.5
    write_store(LMDBDataset(place, target="label"), tmp_path / "again.lmdb")
    assert LMDBDataset(tmp_path / "again.lmdb", target="label").classes == NAMES
    loader = DataLoader(LMDBDataset(place, decode=RandomResizedCrop(8)), 4, collate_fn=Collate())
    assert next(iter(loader))[1].dtype is torch.float32


def test_record_without_a_value_is_named_with_the_query_that_leaves_it_out(tmp_path: Path) -> None:
    gaps: Any = {name: [*column[:5], None, *column[6:]] for name, (_, column) in VALUES.items()}
    gaps["score"][2] = float("nan")
    place = write(tmp_path / "s.lmdb", **gaps)
    for name, query in {
        "score": "score>=0 or score<0",
        "age": "age>=0 or age<0",
        "old": "old or old=false",
        "caption": 'caption~""',
    }.items():
        with pytest.raises(OptionError) as raised:
            batch_of(LMDBDataset(place, target=name), batch_size=LENGTH)
        assert f"record {2 if name == 'score' else 5} (" in str(raised.value)
        assert f"has no {name}: where={query!r} selects the records with a value" in str(raised.value)
        kept = LMDBDataset(place, target=name, where=query)
        assert len(batch_of(kept, batch_size=LENGTH)[1]) == LENGTH - (2 if name == "score" else 1)


def test_mask_is_a_target_that_is_cropped_with_its_image(tmp_path: Path) -> None:
    masks = [Image.fromarray(np.asarray(draw(40, 30, seed=index))[..., 0]) for index in range(4)]
    samples = [(Image.merge("RGB", [mask] * 3), mask) for mask in masks]
    write_store(samples, tmp_path / "s.lmdb", image_format="PNG")
    dataset = LMDBDataset(tmp_path / "s.lmdb")
    assert [dataset[index][1].tobytes() for index in range(4)] == [mask.tobytes() for mask in masks]
    images, targets = batch_of(
        dataset, transform=RandomResizedCrop(8, interpolation="nearest"), input_size=None, normalize=None
    )
    assert targets.shape == (4, 8, 8)
    assert (images[:, 0] == targets).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "nothing"}, "no record of .* has a field 'nothing'; the fields are .*score"),
        ({"target": "image"}, "target='image' is the input"),
        ({"target": "score", "fields": ("image",)}, "target='score' is not in fields=: add 'score' to the fields"),
    ],
)
def test_wrong_target_is_refused_with_a_remedy(place: Path, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LMDBDataset(place, **options)
    with pytest.raises(TypeError, match="target must be the name of a field"):
        LMDBDataset(place, target=3)  # type: ignore[arg-type]


def test_wrong_lists_of_classes_are_refused_with_the_record(tmp_path: Path) -> None:
    for number, wrong in enumerate(([0, 0], [3], [1.0], "red")):
        place = write(tmp_path / f"{number}.lmdb", "labels", labels=[*LISTS[:3], wrong, *LISTS[4:]])
        dataset = LMDBDataset(place)
        with pytest.raises(
            OptionError, match=r"field 'labels' must be a list of different classes from 0 to 2"
        ) as raised:
            _ = dataset.targets
        assert "record 3" in str(raised.value.__notes__)


def test_targets_beyond_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = LMDBDataset(write(tmp_path / "s.lmdb", "labels", labels=LISTS))
    monkeypatch.setattr("dbloader.datasets.base.available_memory", lambda: LENGTH * 3 - 1)
    with pytest.raises(OptionError, match="targets of 9 records and 3 classes need 27 bytes of memory: make a dataset"):
        _ = dataset.targets


def test_mixture_refuses_sources_whose_targets_differ(tmp_path: Path, place: Path) -> None:
    lists = write(tmp_path / "s.lmdb", "labels", labels=LISTS)
    with pytest.raises(OptionError, match=r"all sources must have the same target, got 'label' in .* and 'labels' in"):
        mix({place: 1, lists: 1})
    with create_store(tmp_path / "t.lmdb") as writer, open_store(lists) as store:
        writer.write(store.encoded(range(LENGTH)))
        writer.finish(classes=NAMES[::-1], source={TARGET: "labels"})
    with pytest.raises(OptionError, match="the classes of 'labels' must be the same in all sources, got"):
        mix({lists: 1, tmp_path / "t.lmdb": 1})
    with pytest.raises(OptionError, match="by='class' needs one class for each record, but 'score'"):
        mix(LMDBDataset(place, target="score"), by="class")
