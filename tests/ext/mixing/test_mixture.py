"""A mixture has the samples, labels and fields of its sources, in proportion to weights."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from dbloader import LMDBDataset, MongoDataset, Record, convert, copy_store, mix, write_store
from dbloader.decoding import ResizeCenterCrop
from dbloader.errors import OptionError, RecordIndexError, StoreNotFoundError
from dbloader.stores.lmdb.store import LMDBStore
from tests.ext.parts.test_shards import Here
from tests.support.images import photo, plant_photos

CLASSES = {"a": ("cat", "dog"), "b": ("dog", "emu"), "c": ("ant", "cat", "dog")}
LENGTHS = {"a": 20, "b": 9, "c": 6}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("mixture")
    for name, classes in CLASSES.items():
        convert(plant_photos(folder / name, LENGTHS[name], classes), folder / f"{name}.lmdb")
    return {name: str(folder / f"{name}.lmdb") for name in CLASSES}


def names_in_order(mixture: Any, count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return source and name of the first ``count`` samples in the order that continues through all epochs."""
    sampler = mixture.sampler(seed=seed)
    epochs = range(-(-count // len(mixture)))
    indices = [index for epoch in epochs for index in sampler.order(seed, epoch)(np.arange(len(mixture))).tolist()]
    samples = mixture.__getitems__(indices[:count])
    return [(sample["source"][-6:-5], sample["name"]) for sample in samples]


def test_mixture_has_exact_shares_and_merged_labels(places: dict[str, str]) -> None:
    weights = dict(zip(places.values(), (5, 2, 1), strict=True))
    mixture = mix(weights, fields=("image", "label", "name", "source"))
    assert mixture.classes == ["cat", "dog", "emu", "ant"]
    assert len(mixture) == 48  # six windows of eight samples, until the source with six samples is used up
    assert [len(mix(dict.fromkeys(weights, 1), length=length)) for length in ("longest", "shortest", 7)] == [60, 18, 7]
    samples = [*mixture]
    for window in range(0, 48, 8):
        assert sorted(sample["source"] for sample in samples[window : window + 8]) == [
            *[places["a"]] * 5,
            *[places["b"]] * 2,
            places["c"],
        ]
    assert all(mixture.classes[sample["label"]] == sample["name"].split("/")[0] for sample in samples)
    stored = {place: LMDBDataset(place, fields=("image", "name")) for place in places.values()}
    for sample in samples:
        dataset = stored[sample["source"]]
        assert np.array_equal(sample["image"], dataset[dataset.find(sample["name"])]["image"])


def test_mixture_accepts_subsets_queries_shards_caches_mongodb_and_mixtures(
    places: dict[str, str], tmp_path: Path, mongo_uri: str
) -> None:
    copy_store(places["a"], mongo_uri)
    root = plant_photos(tmp_path / "c", LENGTHS["c"], CLASSES["c"])
    convert(root, tmp_path / "shards.lmdb", shards=3, executor=Here())
    shards = LMDBDataset(tmp_path / "shards.lmdb", fields=("name", "label"))
    queried = LMDBDataset(places["b"], where="class:emu", fields=("name", "label"))
    subset = Subset(Subset(LMDBDataset(places["a"], fields=("name", "label")), [7, 3, 5, 9]), [1, 2])
    inner = mix({queried: 1, subset: 2})
    with MongoDataset(mongo_uri, fields=("name", "label")) as server:
        cached = LMDBDataset(tmp_path / "shards.lmdb", fields=("name", "label"), cache=tmp_path / "cache")
        mixture = mix({inner: 3, shards: 1, server: 2, cached: 1})
        samples = [*mixture]
        assert [*pickle.loads(pickle.dumps(mixture))] == samples  # noqa: S301 - our own
        assert len(samples) == len(mixture) == 70
        assert all(mixture.classes[sample["label"]] == sample["name"].split("/")[0] for sample in samples)
        assert [source.length for source in mixture.sources] == [4, 2, 6, 20, 6]
        assert mixture.order.shares == [(1, 2, 1, 2, 1)]
        assert np.bincount(mixture.divide(range(70))[0]).tolist() == [10, 20, 10, 20, 10]
        chosen = {sample["name"] for sample in samples}
        assert {name for name in queried.names if name.startswith("emu")} <= chosen
        mixture.close()


def test_mixture_by_class_balances_the_classes(places: dict[str, str]) -> None:
    dataset = LMDBDataset(places["c"], fields=("name", "label"), where="class:cat or class:dog or name:0000")
    mixture = mix(dataset, by="class", length=300)
    counts = np.bincount([sample["label"] for sample in mixture])
    assert counts.tolist() == [100, 100, 100]
    assert [source.name for source in mixture.sources] == ["ant", "cat", "dog"]
    assert mixture.classes == ["ant", "cat", "dog"]
    part = mix(Subset(LMDBDataset(places["a"]), [0, 1, 3, 12]), by="class", fields=("name", "source"))
    assert len(part) == 6
    assert {sample["source"]: None for sample in part}.keys() == {"cat", "dog"}
    assert {sample["name"] for sample in part} == {"cat/0000.jpg", "cat/0002.jpg", "cat/0006.jpg", "dog/0005.jpg"}


def test_torch_data_loader_keeps_the_order_of_the_mixture(places: dict[str, str]) -> None:
    mixture = mix(dict(zip(places.values(), (5, 2, 1), strict=True)), fields=("name", "source"))
    expected = [name for _, name in names_in_order(mixture, 96)]
    for workers in (0, 2):
        sampler = mixture.sampler()
        loader = DataLoader(mixture, batch_size=8, sampler=sampler, num_workers=workers)
        found = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            found += [name for batch in loader for name in batch["name"]]
        assert found == expected
    assert [name for batch in DataLoader(mixture, batch_size=8) for name in batch["name"]] == expected[:48]


def test_batch_reads_each_store_once(places: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    read = LMDBStore.read

    def counted(store: LMDBStore, indices: Any) -> Any:
        calls.append(store.place)
        return read(store, indices)

    monkeypatch.setattr(LMDBStore, "read", counted)
    mixture = mix(dict(zip(places.values(), (5, 2, 1), strict=True)), fields=("name",))
    mixture.__getitems__(range(24))
    assert sorted(calls) == sorted(places.values())
    calls.clear()
    mix(places["c"], by="class", fields=("name",)).__getitems__(range(6))
    assert calls == [places["c"]]


def test_target_transform_gets_merged_labels(places: dict[str, str]) -> None:
    second = LMDBDataset(places["b"], target_transform=lambda label: -label, fields=("name", "label"))
    mixture = mix({LMDBDataset(places["a"], fields=("name", "label")): 1, second: 1})
    signs = {-2 if name.startswith("emu") else -1 for name in second.names}
    assert {sample["label"] for sample in mixture} == {0, 1} | signs
    assert second[0]["label"] == 0  # the given dataset stays unchanged


def test_all_fields_with_the_label_get_merged_labels(places: dict[str, str]) -> None:
    fields = {"same": "label", "name": "name"}
    expected = [sample["same"] for sample in mix(dict.fromkeys(places.values(), 1), fields=fields)]
    both = mix(dict.fromkeys(places.values(), 1), fields={**fields, "label": "label"})
    assert [(sample["label"], sample["same"]) for sample in both] == [(label, label) for label in expected]
    other = mix(dict.fromkeys(places.values(), 1), fields={**fields, "label": "name"})
    assert [(sample["label"], sample["same"]) for sample in other] == [
        (sample["name"], sample["same"]) for sample in both
    ]


def test_error_names_the_sources_whose_fields_or_shapes_differ(places: dict[str, str], tmp_path: Path) -> None:
    unnamed = tmp_path / "unnamed.lmdb"
    write_store([Record(f"{n}.jpg", n, photo(n), fields={"text": str(n)}) for n in range(3)], unnamed)
    with pytest.raises(OptionError, match=r"a\.lmdb has names and .*unnamed\.lmdb has none"):
        mix({places["a"]: 1, unnamed: 1})
    assert len(mix({places["a"]: 1, unnamed: 1}, fields=("image",))) == 40
    text = LMDBDataset(unnamed, fields=("image", "text"))
    image = LMDBDataset(places["a"], fields=("image",))
    with pytest.raises(OptionError, match=r"got \['image'\] in .*a\.lmdb and \['image', 'text'\] in .*unnamed\.lmdb"):
        mix({image: 1, text: 1})
    with pytest.raises(OptionError, match=r"no record of .*a\.lmdb has a field 'text'"):
        mix({places["a"]: 1, unnamed: 1}, fields=("image", "text"))
    small, large = (LMDBDataset(places["a"], decode=ResizeCenterCrop(size)) for size in (16, 24))
    with pytest.raises(OptionError, match=r"uint8 of shape \(3, 16, 16\) in .*a\.lmdb and .*\(3, 24, 24\)"):
        mix({small: 1, large: 1})
    floats = LMDBDataset(places["b"], lambda image: torch.zeros(3, 16, 16))
    with pytest.raises(OptionError, match=r"got torch.uint8 .*a\.lmdb and torch.float32 of shape .* in .*b\.lmdb"):
        mix({small: 1, floats: 1})


@pytest.mark.parametrize(
    ("weights", "error", "match"),
    [
        ([-1], OptionError, "at least 0"),
        ([0], OptionError, "at least one weight must be above 0"),
        (["5"], TypeError, "must be a number"),
        ([[(0, 1), (10, 0)]], OptionError, "from position 10 on"),
        ([[(5, 1)]], OptionError, "begin with 0 and ascend"),
        ([[(0, 1), (9, 1), (9, 2)]], OptionError, "begin with 0 and ascend"),
        ([[1, 2]], TypeError, "a number or a schedule"),
        ([], TypeError, "dict from at least one source to its weight"),
    ],
)
def test_wrong_weights_are_refused(
    places: dict[str, str], weights: list[Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        mix(dict(zip(places.values(), weights, strict=False)))


def test_wrong_sources_are_refused(places: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="dict from at least one source to its weight"):
        mix([places["a"]])
    with pytest.raises(TypeError, match=r"^a source must be a place, .*, got dict$"):
        mix({"a": 1}, by="class")
    with pytest.raises(TypeError, match=r"got a Subset of Mixture$"):
        mix({Subset(mix({places["a"]: 1}), [0]): 1})
    with pytest.raises(TypeError, match="got TensorDataset"):
        mix({TensorDataset(torch.zeros(3)): 1})
    with pytest.raises(StoreNotFoundError):
        mix({tmp_path / "nothing.lmdb": 1})
    with pytest.raises(OptionError, match="must have samples, got none in"):
        mix({Subset(LMDBDataset(places["a"]), []): 1})
    with pytest.raises(OptionError, match="length must be one of longest, shortest"):
        mix({places["a"]: 1}, length="long")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="got a mixture"):
        mix(mix({places["a"]: 1}), by="class")
    with pytest.raises(OptionError, match="a mixture with a schedule cannot be a source"):
        mix({mix({places["a"]: [(0, 1), (9, 2)], places["b"]: 1}): 1})
    mixture = mix({places["a"]: 1})
    with pytest.raises(RecordIndexError, match="an epoch has 20 samples"):
        mixture[40]


def test_state_stays_small_for_any_number_of_sources(places: dict[str, str]) -> None:
    base = LMDBDataset(places["a"])
    for count in (2, 50, 500):
        parts: dict[Any, Any] = {Subset(base, [n % 20]): (n + 1) ** 0.5 for n in range(count)}
        parts[base] = [(0, 1), *((1000 * n, n) for n in range(1, 20))]
        state = mix(parts).sampler().state_after()
        assert len(json.dumps(state)) <= 1000
