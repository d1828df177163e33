"""create_loader reads a mixture in the same global order with any ranks, and resumes it exactly."""

from __future__ import annotations

import json
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from dbloader import LMDBDataset, PrefetchLoader, Skip, convert, create_loader, mix
from dbloader.decoding import RandomResizedCrop
from dbloader.errors import LoaderError, OptionError
from dbloader.loading.create import create_batch_sampler
from dbloader.sampling import SampleRNG, SeededBatchSampler, ShuffleSampler
from tests.support.images import plant_photos
from tests.support.lmdb_files import tamper_with_records

FIELDS = ("image", "label", "name", "source")
OPTIONS: dict[str, Any] = {"device": None, "normalize": None, "is_training": True, "num_workers": 0}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("mixture")
    for name, count, classes in (("a", 20, ("cat", "dog")), ("b", 9, ("dog", "emu")), ("c", 6, ("ant", "cat"))):
        convert(plant_photos(folder / name, count, classes), folder / f"{name}.lmdb")
    return [str(folder / f"{name}.lmdb") for name in "abc"]


def mixture_of(places: list[str], weights: tuple[Any, ...] = (5, 2, 1), **options: Any) -> Any:
    return mix(dict(zip(places, weights, strict=False)), **{"fields": FIELDS, **options})


def loader_of(mixture: Any, batch_size: int, ranks: int = 1, rank: int = 0, **options: Any) -> PrefetchLoader[Any]:
    sampler = mixture.sampler(ranks, rank, seed=options.pop("seed", 0))
    return create_loader(mixture, 16, batch_size, sampler=sampler, **{**OPTIONS, **options})


def rows_of(batch: Any) -> list[tuple[Any, ...]]:
    """Return each sample of a batch with a weighted sum of its pixels, which depends on their positions."""
    weights = torch.arange(batch["image"][0].numel())
    sums = (batch["image"].flatten(1).long() * weights).sum(1).tolist()
    return [*zip(batch["name"], batch["source"], batch["label"].tolist(), sums, strict=True)]


def take(loaders: list[PrefetchLoader[Any]], batches: int | None = None) -> list[tuple[Any, ...]]:
    """Return the samples of the next batches of all ranks in their global order."""
    columns = []
    for loader in loaders:
        iterator = iter(loader)
        taken = [next(iterator) for _ in range(batches)] if batches is not None else [*iterator]
        columns.append([row for batch in taken for row in rows_of(batch)])
    return [row for rows in zip(*columns, strict=True) for row in rows]


@pytest.fixture(scope="module")
def expected(places: list[str]) -> list[tuple[Any, ...]]:
    loader = loader_of(mixture_of(places), 8)
    return [row for _ in range(3) for row in take([loader])]


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("workers", [0, 2])
def test_global_order_is_the_same_for_any_ranks_and_workers(
    places: list[str], expected: list[tuple[Any, ...]], workers: int, kind: str
) -> None:
    for ranks in (1, 3, 8):
        loaders = [
            loader_of(mixture_of(places), 24 // ranks, ranks, rank, num_workers=workers, worker_type=kind)
            for rank in range(ranks)
        ]
        assert [row for _ in range(2) for row in take(loaders)] == expected[:96]


def test_repeated_resuming_with_other_ranks_and_workers_loses_no_sample(
    places: list[str], expected: list[tuple[Any, ...]]
) -> None:
    state: Any = None
    found: list[tuple[Any, ...]] = []
    for ranks in (1, 2, 3, 1, 6, 2, 4, 3, 1, 12):  # each run takes 12 samples; all ten reach the third epoch
        options: dict[str, Any] = {"seed": 9, "num_workers": ranks % 3, "worker_type": "threads"}
        loaders = [loader_of(mixture_of(places), 12 // ranks, ranks, rank, **options) for rank in range(ranks)]
        if state is None:
            loaders[0].load_state_dict({**loaders[0].state_dict(), "seed": 0})
        else:
            for loader in loaders:
                loader.load_state_dict(state)
                assert loader.state_dict() == state  # as if this run ended before its first batch
        found += take(loaders, 1)
        states = [json.dumps(loader.state_dict()) for loader in loaders]
        assert len({*states}) == 1
        assert len(states[0]) <= 1000
        state = json.loads(states[0])
        for loader in loaders:
            loader.close()
    assert found == expected[:120]


def test_evaluation_loader_returns_the_first_epoch_in_order(places: list[str], expected: list[tuple[Any, ...]]) -> None:
    mixture = mixture_of(places)
    for _ in range(2):
        batches = [*create_loader(mixture, 16, 7, **{**OPTIONS, "is_training": False})]
        assert [name for batch in batches for name in batch["name"]] == [row[0] for row in expected[:48]]


def test_weights_may_change_only_after_the_position_of_a_state(
    places: list[str], expected: list[tuple[Any, ...]]
) -> None:
    loader = loader_of(mixture_of(places), 8)
    take([loader])
    assert take([loader], 2) == expected[48:64]
    state = loader.state_dict()
    loader.close()
    changed = loader_of(mixture_of(places, ([(0, 5), (64, 0)], 2, [(0, 1), (73, 3)])), 4)
    changed.load_state_dict(state)
    sources = [row[1][-6] for row in take([changed])]
    assert sorted(sources[:9]) == ["b"] * 6 + ["c"] * 3
    assert sorted(sources[9:29]) == ["b"] * 8 + ["c"] * 12
    assert len(sources) == 32
    early = loader_of(mixture_of(places, ([(0, 5), (63, 0)], 2, 1)), 8)
    with pytest.raises(OptionError, match=r"its weights \(as position:weights\) are 0:5,2,1, not 0:5,2,1 63:0,2,1"):
        early.load_state_dict(state)


def test_state_of_another_mixture_is_refused_with_the_difference(places: list[str], tmp_path: Path) -> None:
    loader = loader_of(mixture_of(places), 8)
    take([loader], 2)
    state = loader.state_dict()
    loader.close()
    convert(plant_photos(tmp_path / "b", 9, ("dog", "emu"), quality=50), tmp_path / "b.lmdb")
    cases = {
        r"it has other samples of .*/b\.lmdb\. Make": mixture_of([places[0], str(tmp_path / "b.lmdb"), places[2]]),
        "its sources are in another order": mixture_of([places[1], places[0], places[2]], (2, 5, 1)),
        "it has 3 sources, not 2": mixture_of(places[:2]),
        r"its weights \(as position:weights\) are 0:5,2,1, not 0:5,2,2": mixture_of(places, (5, 2, 2)),
        "its epochs have 48 samples, not 50": mixture_of(places, length=50),
    }
    (tmp_path / "copy.lmdb").write_bytes(Path(places[1]).read_bytes())
    moved = mixture_of([places[0], str(tmp_path / "copy.lmdb"), places[2]])  # the same samples at another place
    loader_of(moved, 8).load_state_dict(state)
    for match, mixture in cases.items():
        with pytest.raises(OptionError, match=match):
            loader_of(mixture, 8).load_state_dict(state)
    with pytest.raises(OptionError, match="lacks 'sources', 'weights'"):
        loader_of(mixture_of(places), 8).load_state_dict(
            create_loader(LMDBDataset(places[0]), 16, 8, **OPTIONS).state_dict()
        )
    for changes, match in (
        ({"weights": "?"}, r"are \?, not"),
        ({"sources": 3}, "other samples of a source"),
        ({"position": 999}, "0 to 48"),
    ):
        with pytest.raises(OptionError, match=match):
            loader_of(mixture_of(places), 8).load_state_dict({**state, **changes})
    on_purpose = loader_of(mixture_of(places, (5, 2, 2)), 8)
    chosen = {**on_purpose.state_dict(), "epoch": state["epoch"], "position": state["position"]}
    on_purpose.load_state_dict(chosen)
    fresh = take([loader_of(mixture_of(places, (5, 2, 2)), 8)])
    assert take([on_purpose]) == fresh[16:]


def test_stats_count_samples_and_passes_of_each_source(places: list[str]) -> None:
    for workers, kind in ((0, "threads"), (2, "processes")):
        loader = loader_of(mixture_of(places), 8, num_workers=workers, worker_type=kind)
        take([loader])
        take([loader], 3)
        sources = loader.stats().sources
        assert {name: one.samples for name, one in sources.items()} == dict(zip(places, (15, 6, 3), strict=True))
        assert [one.passes for one in sources.values()] == [45 / 20, 18 / 9, 9 / 6]
        assert all(one.waited_s > 0 for one in sources.values())
        loader.close()


def test_stats_of_a_subset_count_samples_but_no_passes(places: list[str]) -> None:
    loader = create_loader(Subset(mixture_of(places), range(8)), 16, 8, **OPTIONS)
    assert len([*loader]) == 1
    assert [(one.samples, one.passes) for one in loader.stats().sources.values()] == [(5, 0), (2, 0), (1, 0)]


def test_number_of_threads_does_not_depend_on_the_number_of_sources(places: list[str], tmp_path: Path) -> None:
    copies = [tmp_path / f"{number}.lmdb" for number in range(35)]
    for copy in copies:
        copy.write_bytes(Path(places[2]).read_bytes())
    for count in (1, 35):
        before = {*threading.enumerate()}
        mixture = mix(dict.fromkeys(copies[:count], 1))
        loader = create_loader(mixture, 16, 3, **{**OPTIONS, "num_workers": 2, "worker_type": "threads"})
        next(iter(loader))
        assert len({*threading.enumerate()} - before) <= 2 + 1  # the workers and the background thread
        loader.close()


def test_damaged_sample_is_replaced(tmp_path: Path, places: list[str]) -> None:
    convert(plant_photos(tmp_path / "d", 5), tmp_path / "d.lmdb")
    tamper_with_records(tmp_path / "d.lmdb", {1: b"damage"})
    mixture = mixture_of([places[0], str(tmp_path / "d.lmdb")], (1, 1))
    strict = Skip(0.01)
    part = create_loader(Subset(mixture, range(40)), 16, 8, on_error=strict, **OPTIONS)
    for loader in (loader_of(mixture, 8, on_error=strict), part):
        with warnings.catch_warnings(action="ignore"), pytest.raises(LoaderError, match="too many samples") as caught:
            take([loader])
        assert "dbloader verify" not in str(caught.value)  # it would verify only one of the stores
    loader = loader_of(mixture, 8, on_error=Skip(0.5))
    with pytest.warns(UserWarning, match=r"skipped the damaged sample \d+ \(cat/0002\.jpg\)"):
        rows = take([loader])
    assert loader.stats().skipped == 4
    assert len(rows) == 40
    assert "cat/0002.jpg" not in {row[0] for row in rows if row[1].endswith("d.lmdb")}


def test_sources_keep_their_own_decoders_and_transforms(places: list[str]) -> None:
    own = LMDBDataset(places[0], decode=RandomResizedCrop(16, flip=0))
    mixture = mix({own: 1, places[1]: 1})
    images, labels = next(iter(create_loader(mixture, 16, 8, **OPTIONS)))
    assert images.shape == (8, 3, 16, 16)
    assert labels.dtype == torch.int64
    with pytest.raises(OptionError, match=r"\(3, 16, 16\) in .*a\.lmdb and .*\(3, 24, 24\) in .*b\.lmdb"):
        create_loader(mixture, 24, 8, **OPTIONS)
    tensor = LMDBDataset(places[1], lambda image: torch.from_numpy(np.array(image.resize((16, 16)))).permute(2, 0, 1))
    mixed = mix({own: 1, tensor: 1})
    with pytest.raises(OptionError, match="has no effect"):
        create_loader(mixed, 16, 8, **OPTIONS)
    loader = create_loader(mixed, batch_size=8, **OPTIONS)
    images, labels = next(iter(loader))
    assert images.shape == (8, 3, 16, 16)
    loader.close()
    lists = create_loader(mixed, batch_size=8, collate_fn=list, **OPTIONS)
    assert [len(sample) for sample in next(iter(lists))] == [2] * 8
    lists.close()


def test_default_transform_replaces_no_transform_in_a_mixture(places: list[str]) -> None:
    class OwnSamples(LMDBDataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)

    for kind in (LMDBDataset, OwnSamples):
        mixture = mix({places[0]: 1, kind(places[1], lambda _: torch.full((3, 16, 16), 7, dtype=torch.uint8)): 1})
        for dataset in (mixture, Subset(mixture, range(8))):
            loader = create_loader(dataset, 16, 8, **OPTIONS)
            images, _ = next(iter(loader))
            assert (images == 7).flatten(1).all(1).sum() == 4
            loader.close()


class Drawing(LMDBDataset):
    """Samples that are random numbers, drawn by the dataset itself."""

    def __getitems__(self, indices: Any) -> list[Any]:
        return [(number, 0) for number in indices.rng.uniform(1, "test")[:, 0].tolist()]


def test_datasets_that_draw_themselves_draw_the_numbers_of_the_positions(places: list[str]) -> None:
    mixture = mix({Drawing(places[0]): 2, Drawing(places[1]): 1})
    wanted = SampleRNG(0, 0, np.arange(9)).uniform(1, "test")[:, 0].tolist()
    [(drawn, _), *_] = create_loader(mixture, None, 9, sampler=mixture.sampler(), **OPTIONS, transform=None)
    assert drawn.tolist() == wanted
    batches = SeededBatchSampler(mixture.sampler(), 9)
    [drawn, _] = next(iter(DataLoader(mixture, batch_sampler=batches)))
    assert drawn.tolist() == wanted


def test_error_in_a_mixture_names_the_record(places: list[str], tmp_path: Path) -> None:
    convert(plant_photos(tmp_path / "e", 4), tmp_path / "e.lmdb")
    mixture = mix({places[0]: 1, tmp_path / "e.lmdb": 1}, fields=("name", "resized_from"))
    with pytest.raises(OptionError, match=r"record \d+ \(.*\.jpg\) of .*\.lmdb has no resized_from"):
        next(iter(create_loader(mixture, batch_size=8, transform=None, **OPTIONS)))


def test_renamed_image_and_label_are_prepared(places: list[str]) -> None:
    fields = {"pixel_values": "image", "labels": "label", "origin": "source"}
    mixture = mixture_of(places, fields=fields)
    for dataset in (mixture, Subset(mixture, range(8))):
        loader = create_loader(dataset, 16, 8, is_training=True, device="cpu", num_workers=0)
        batch = next(iter(loader))
        assert [*batch] == [*fields]
        assert batch["pixel_values"].dtype == torch.float32
        assert {*batch["origin"]} <= {*places}
        loader.close()


def test_shuffling_sampler_keeps_the_shares(places: list[str], expected: list[tuple[Any, ...]]) -> None:
    mixture = mixture_of(places)
    loader = create_loader(mixture, 16, 8, sampler=ShuffleSampler(mixture), **OPTIONS)
    names = [name for batch in loader for name in batch["name"]]
    assert sorted(names) == sorted(row[0] for row in expected[:48])
    sampler = create_batch_sampler(mixture, None, 8, shuffle=True, distributed=False, seed=3, drop_last=True).sampler
    assert (sampler.seed, len(sampler)) == (3, 48)


def test_mixture_announces_the_order_to_the_cache_of_a_source(places: list[str], tmp_path: Path) -> None:
    from tests.ext.parts.test_shards import Here

    root = plant_photos(tmp_path / "s", 12, width=64)
    convert(root, tmp_path / "s.lmdb", shards=4, executor=Here())
    nbytes = max(path.stat().st_size for path in (tmp_path / "s.lmdb").rglob("*.lmdb"))
    cached = LMDBDataset(tmp_path / "s.lmdb", cache=tmp_path / "cache", cache_bytes=2 * nbytes, fields=("image",))
    mixture = mix({cached: 1, Subset(LMDBDataset(places[0], fields=("image",)), [0, 1]): 3})
    loader = create_loader(mixture, 16, 8, **OPTIONS)
    with pytest.raises(OptionError, match="cache"):  # a random order of all records needs every shard at once
        next(iter(loader))
    mixture.close()
