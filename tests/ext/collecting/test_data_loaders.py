"""write_store stores the samples of a DataLoader in its order, before they are collated."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate
from typing_extensions import override

from dbloader import LMDBDataset, create_loader, write_store
from dbloader.errors import FieldError, OptionError
from dbloader.ext.collecting.sample_to_record import SampleEncoder
from tests.ext.collecting.written import written
from tests.support.samples import IMAGE, Items, Sample, image_of, noise, same


def test_samples_keep_the_order_of_a_shuffling_loader(tmp_path: Path) -> None:
    items = [(torch.tensor([float(index)]), index) for index in range(23)]

    def loader() -> DataLoader[Any]:
        return DataLoader(Items(items), 5, shuffle=True, generator=torch.Generator().manual_seed(3))

    expected = [label for _, labels in loader() for label in labels.tolist()]
    assert expected != sorted(expected)
    assert [record.label for record in written(loader(), tmp_path)] == expected


STRUCTURES: dict[str, Any] = {
    "tensors": lambda at: (torch.full((2, 2), float(at)), torch.tensor(at)),
    "images of the size of the batch": lambda at: (np.full((5, 5), at), at),
    "an image alone": lambda at: torch.full((5,), at),
    "numbers": lambda at: {"int": at, "float": at / 3, "bool": at > 2, "float32": torch.tensor(at / 3)},
    "strings": lambda at: {"caption": f"number {at}", "tags": [f"{at}.{tag}" for tag in range(5)]},
    "nested": lambda at: {"a": {"b": [torch.tensor([at]), {"c": f"{at}"}]}, "d": [[at, at + 1], [at]]},
    "a list of tensors": lambda at: {"boxes": [torch.full((3,), at), torch.full((2, 2), at)], "x": [b"x", b"%d" % at]},
    "a named tuple": lambda at: Sample(torch.full((2,), at), at, f"caption {at}"),
    "nothing in it": lambda at: {"empty": [], "none": {}, "label": at},
}


@pytest.mark.parametrize("structure", STRUCTURES)
def test_store_returns_the_same_batches_as_the_loader(tmp_path: Path, structure: str) -> None:
    """Lists of 5 items, images of 5 rows and samples of 5 fields look like a batch of 5."""
    items = [STRUCTURES[structure](at) for at in range(12)]
    stored = written(DataLoader(Items(items), 5), tmp_path, require_images=False)
    for one, other in zip(stored, written(items, tmp_path, require_images=False), strict=True):
        assert same(dataclasses.asdict(one), dataclasses.asdict(other))
    if isinstance(items[0], Sample):
        return
    fields: Any = tuple(items[0]) if isinstance(items[0], dict) else None if isinstance(items[0], tuple) else ("image",)
    with LMDBDataset(tmp_path / "s.lmdb", fields=fields, decode=None) as dataset:
        batches = list(DataLoader(dataset, 5))
    expected: Any = list(DataLoader(Items(items), 5))
    if not isinstance(items[0], (tuple, dict)):
        expected = [{"image": batch} for batch in expected]
    assert same(batches, expected)


def test_workers_make_and_encode_the_samples_in_order(tmp_path: Path) -> None:
    images = [(noise("RGB", at), at) for at in range(9)]
    # PyTorch cannot collate PIL images, so the loader alone would fail.
    records = written(DataLoader(Items(images), 2, num_workers=2, multiprocessing_context="fork"), tmp_path)
    assert [record.label for record in records] == list(range(9))
    assert all(image_of(record).tobytes() == noise("RGB", at).tobytes() for at, record in enumerate(records))
    encoder = SampleEncoder.of(("image", "label"), "PNG", None)
    assert pickle.loads(pickle.dumps(encoder))([images[3]]) == encoder([images[3]])  # noqa: S301 - for spawned workers


def refuse_to_collate(batch: list[Any]) -> Any:
    raise AssertionError(f"called with {len(batch)} samples")


def columns(batch: list[Any]) -> Any:
    return tuple(zip(*batch, strict=True))


@pytest.mark.parametrize("collate", [list, tuple, columns, refuse_to_collate, default_collate])
def test_samples_are_stored_before_they_are_collated(tmp_path: Path, collate: Any) -> None:
    """Samples may differ in size, and a batch is never stored as one sample."""
    boxes = [(torch.rand(at, 4), at) for at in range(5)]
    loader = DataLoader(Items(boxes), 2, collate_fn=collate)
    for record, (tensor, label) in zip(written(loader, tmp_path), boxes, strict=True):
        assert same(record.image, tensor.numpy())
        assert record.label == label


def double(sample: Any) -> Any:
    return sample[0] * 2, sample[1]


def test_collate_fn_of_an_unbatched_loader_makes_the_samples(tmp_path: Path) -> None:
    loader = DataLoader(Items([(torch.ones(2), 5)]), None, collate_fn=double)
    (record,) = written(loader, tmp_path)
    assert same(record.image, np.full(2, 2, np.float32))


class Repeating(DataLoader[Any]):
    """A loader that makes its own batches, as loaders do that repeat or mix batches."""

    @override
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield {"batch": batch}


def test_loader_with_opaque_batches_is_refused(tmp_path: Path) -> None:
    loader = Repeating(Items([(torch.ones(2), 5)]), 4)
    with pytest.raises(OptionError, match=r"^this Repeating does not use its collate_fn"):
        written(loader, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_loader_of_create_loader_is_refused(tmp_path: Path) -> None:
    """The batches of create_loader are decoded, cropped and normalized."""
    write_store([(IMAGE, 0)] * 3, tmp_path / "a.lmdb")
    dataset = LMDBDataset(tmp_path / "a.lmdb")
    loader = create_loader(dataset, batch_size=2, device=None, num_workers=0)
    with loader, pytest.raises(OptionError, match="a loader of create_loader returns whole batches, not samples"):
        write_store(loader, tmp_path / "b.lmdb")


class Failing(Items):
    """A dataset whose item 5 cannot be made."""

    @override
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise RuntimeError("no item 5")
        return super().__getitem__(index)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_failing_sample_leaves_no_store_and_no_worker(tmp_path: Path, batch_size: int | None) -> None:
    loader = DataLoader(Failing([(IMAGE, at) for at in range(8)]), batch_size, num_workers=2)
    before = multiprocessing.active_children()
    gc.disable()  # the garbage collector would end the workers only later
    try:
        with pytest.raises(RuntimeError, match="no item 5"):
            write_store(loader, tmp_path / "s.lmdb")
        assert multiprocessing.active_children() == before
    finally:
        gc.enable()
    assert list(tmp_path.iterdir()) == []


def test_unstorable_sample_of_a_loader_is_named(tmp_path: Path) -> None:
    items = [(IMAGE, at if at != 5 else "five") for at in range(12)]
    with pytest.raises(FieldError, match=r"^sample 5: label 'five' is none of the classes: [^\n]*$"):
        write_store(DataLoader(Items(items), 3, num_workers=2), tmp_path / "s.lmdb")
    assert list(tmp_path.iterdir()) == []
