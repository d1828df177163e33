"""create_loader(on_error=Skip()) replaces each damaged sample by the next undamaged sample, up to a limit."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import Dataset, Subset

from dbloader import LMDBDataset, MongoDataset, Record, Skip, create_loader, write_store
from dbloader.batches.timed import SkippedSample
from dbloader.conversion.convert import convert
from dbloader.conversion.transcode import ImageFormat
from dbloader.decoding import DecodeTensor, RandomResizedCrop
from dbloader.errors import (
    DamagedRecordError,
    DamagedStoreError,
    DBLoaderError,
    LoaderError,
    OptionError,
    PixelRangeError,
    StoreNotFoundError,
    StoreUnreachableError,
)
from dbloader.loading.stats import Stats
from dbloader.sampling import BlockShuffleSampler, ClassBalancedSampler, OrderedSampler
from tests.support.children import run_ranks
from tests.support.damaged import (
    CUT,
    DAMAGED,
    ENGINES,
    FLIPPED,
    LENGTH,
    ORDER,
    SEED,
    SKIP,
    UNKNOWN,
    all_of,
    expected,
    flip,
    name_of,
    write_damaged,
)
from tests.support.images import photo, plant
from tests.support.mongo import Server
from tests.support.mongo_stores import database_of, records_in
from tests.support.samples import same

SIZELESS = {**SKIP, "input_size": None}

pytestmark = pytest.mark.filterwarnings("ignore:skipped the damaged sample:UserWarning")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_damaged(tmp_path_factory.mktemp("stores"))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_damaged_sample_is_replaced_by_the_next_for_any_workers(place: Path, engine: Any) -> None:
    with LMDBDataset(place) as dataset:
        loader = create_loader(dataset, **{**SKIP, **engine, "on_error": Skip(3 / LENGTH)})  # a limit for each epoch
        for epoch in range(3):  # from the second epoch on, the workers already know the damaged samples
            assert same(all_of(loader), expected(epoch))
            assert loader.stats().skipped == 3
        loader.close()


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("received", [1, 5])
def test_resumed_loader_replaces_the_same_samples(place: Path, engine: Any, received: int) -> None:
    with LMDBDataset(place) as dataset:
        loader: Any = create_loader(dataset, **SKIP)
        batches = iter(loader)
        for _ in range(received):
            next(batches)
        state = loader.state_dict()
        assert (state["seed"], state["epoch"], state["position"]) == (SEED, 0, 4 * received)
        loader.close()
        resumed: Any = create_loader(dataset, **{**SKIP, **engine})
        resumed.load_state_dict(state)
        assert same(all_of(resumed), expected(0)[received:])
        assert same(all_of(resumed), expected(1))
        resumed.close()


def test_two_ranks_get_the_same_number_of_complete_batches(place: Path, tmp_path: Path) -> None:
    def train(rank: int) -> None:
        loader = create_loader(LMDBDataset(place), **SKIP)
        batches = []
        for images, labels in loader:
            # like gradients in a training, this hangs the other rank if a batch is missing
            dist.all_reduce(torch.ones(1))
            batches.append([images.clone(), labels])
        assert same(batches, expected(0, range(rank, LENGTH, 2)))
        assert [len(labels) for _, labels in batches] == [4, 4, 4]

    run_ranks(train, tmp_path)


@pytest.mark.parametrize(
    "sampler",
    [
        OrderedSampler(range(LENGTH)),
        BlockShuffleSampler(range(LENGTH), 4, 2, seed=2),
        ClassBalancedSampler([0, *[1] * (LENGTH - 1)], 2 * LENGTH, seed=2),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_damaged_sample_is_replaced_by_the_next_with_any_sampler(place: Path, sampler: Any) -> None:
    order = [*sampler]
    wanted = [next(i for i in order[n:] + order if i not in DAMAGED) for n in range(len(order))]
    with LMDBDataset(place) as dataset:
        loader = create_loader(dataset, sampler=sampler, **{**SKIP, "drop_last": False, "on_error": Skip(0.5)})
        assert [label for _, labels in loader for label in labels.tolist()] == wanted
        assert loader.stats().skipped == sum(index in DAMAGED for index in order) > 0


def as_float(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((8, 8)), np.float32))


def stack_four(samples: list[Any]) -> list[torch.Tensor]:
    assert len(samples) == 4, "a batch must arrive, not a single sample"
    return [torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])]


@pytest.mark.parametrize(
    "options",
    [{}, {"transform": as_float, "input_size": None}, {"collate_fn": stack_four}],
    ids=["tensor", "transform", "collate_fn"],
)
@pytest.mark.parametrize("part", [False, True])
def test_transforms_collate_functions_and_subsets_get_complete_batches(place: Path, options: Any, part: bool) -> None:
    with LMDBDataset(place) as store:
        dataset: Any = Subset(store, range(LENGTH - 1, -1, -1)) if part else store
        loader = create_loader(dataset, **{**SKIP, **options})
        labels = torch.cat([labels for _, labels in loader]).tolist()
        order = [LENGTH - 1 - index if part else index for index in ORDER]
        assert labels == [next(i for i in order[n:] + order if i not in DAMAGED) for n in range(LENGTH)]
        listed = {(sample.index, sample.name) for sample in loader.stats().skipped_samples}
        assert listed == {(LENGTH - 1 - index if part else index, name_of(index)) for index in DAMAGED}


def test_damaged_tiled_image_is_replaced(tmp_path: Path) -> None:
    plant(tmp_path / "images", {f"{n % 2}/{n}.jpg": photo(n, 200, 150) for n in range(6)})
    place = tmp_path / "s.lmdb"
    convert(tmp_path / "images", place, images=ImageFormat(tile=True, quality=90))
    with LMDBDataset(place) as dataset:
        stored: Any = dataset.record(4).image
    flip(place, stored)
    options = {**SKIP, "is_training": False, "batch_size": 2}
    with LMDBDataset(place, fields=("image", "index")) as dataset:
        loader = create_loader(dataset, **options)
        indices = [index for batch in loader for index in batch["index"].tolist()]
    assert indices == [0, 1, 2, 3, 5, 5]


def test_damaged_mask_replaces_the_whole_sample(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 20, 30, 4), np.uint8)
    records = [Record(f"{n}", n, image[..., :3], fields={"mask": image[..., 3]}) for n, image in enumerate(pixels)]
    write_store(records, tmp_path / "s.lmdb")
    flip(tmp_path / "s.lmdb", np.ascontiguousarray(pixels[1, ..., 3]).tobytes())
    flip(tmp_path / "s.lmdb", np.ascontiguousarray(pixels[2, ..., :3]).tobytes())
    options = {**SIZELESS, "is_training": False, "batch_size": 3, "on_error": Skip(0.5), "transform": DecodeTensor()}
    with LMDBDataset(tmp_path / "s.lmdb", fields=("image", "mask", "index")) as dataset:
        for engine in ({}, {"num_workers": 2, "worker_type": "threads"}):
            loader = create_loader(dataset, **{**options, **engine})
            first, second = loader
            assert [*first["index"], *second["index"]] == [0, 3, 3, 3, 4, 5]
            wanted = pixels[[0, 3, 3]]
            assert np.array_equal(first["image"].permute(0, 2, 3, 1), wanted[..., :3])
            assert np.array_equal(first["mask"], wanted[..., 3])
            assert loader.stats().skipped == 2


def test_damaged_and_missing_records_in_mongodb_are_replaced(mongo_server: Server, mongo_uri: str) -> None:
    write_store([Record(name_of(n), n, b"no image" if n == UNKNOWN else photo(n)) for n in range(LENGTH)], mongo_uri)
    with database_of(mongo_server, mongo_uri) as database:
        records_in(database).update_one({"_id": FLIPPED}, {"$set": {"label": 5}})
        records_in(database).delete_one({"_id": CUT})
    # the dataset has its own decoder, so the loader does not copy the dataset
    with MongoDataset(mongo_uri, decode=RandomResizedCrop(16)) as dataset:
        for engine in ({}, {"num_workers": 2, "worker_type": "threads"}):
            loader = create_loader(dataset, **{**SIZELESS, **engine})
            assert same(all_of(loader), expected(0))
            reasons = {sample.index: sample.reason for sample in loader.stats().skipped_samples}
        loader = create_loader(dataset, **SIZELESS)
        batches = iter(loader)
        begun = [[*next(batches)]]
        write_store([Record("other.jpg", 0, photo(0))], mongo_uri, overwrite=True)
        assert same(begun + all_of(batches), expected(0))  # from the old store, with which the epoch began
        assert {sample.name for sample in loader.stats().skipped_samples} == {*map(name_of, DAMAGED)}
    assert "it is missing" in reasons[CUT]
    assert "its CRC-32 is" in reasons[FLIPPED]
    assert "no known format" in reasons[UNKNOWN]


# Warnings, statistics and the limit


@pytest.mark.parametrize("batch_size", [1, 6])
def test_damaged_sample_raises_its_error_by_default(place: Path, batch_size: int) -> None:
    options = {name: value for name, value in SKIP.items() if name != "on_error"}
    with LMDBDataset(place) as dataset, pytest.raises(DBLoaderError, match=r"does not decode|known format|is damaged"):
        for _ in create_loader(dataset, **{**options, "batch_size": batch_size}):
            pass


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_stats_list_skipped_samples_of_all_workers(place: Path, engine: Any) -> None:
    with LMDBDataset(place) as dataset:
        loader = create_loader(dataset, **{**SKIP, **engine})
        batches = iter(loader)
        counts = [loader.stats().skipped for _ in batches]
        assert counts == [0, 2, 2, 2, 2, 3]  # counted when a batch is received, no matter how many are prefetched
        stats = loader.stats()
        loader.close()
    assert [(sample.index, sample.name) for sample in stats.skipped_samples] == [(n, name_of(n)) for n in DAMAGED]
    cut, unknown, flipped = (sample.reason for sample in stats.skipped_samples)
    assert cut.startswith("the image does not decode: ")
    assert unknown.startswith("the image is in no known format: it begins with b'no i'")
    assert flipped.startswith(f"record {FLIPPED} ({name_of(FLIPPED)}) of {place} is damaged: its CRC-32 is ")
    assert str(stats).endswith("; 3 damaged samples skipped")


def test_each_damaged_sample_causes_one_warning_of_one_line(place: Path) -> None:
    with LMDBDataset(place) as dataset, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = create_loader(dataset, **SKIP)
        for _ in range(2):
            for _ in loader:
                pass
        assert [warning.filename for warning in caught] == [__file__] * 3
        for index, warning in zip(DAMAGED, caught, strict=True):
            text = str(warning.message)
            assert text.startswith(f"skipped the damaged sample {index} ({name_of(index)}): ")
            assert text.endswith(f"; dbloader verify {place} --decode names all damaged records")
            assert "\n" not in text


def test_at_most_a_hundred_samples_are_listed() -> None:
    stats = Stats()
    for _ in range(3):
        stats.skip(tuple(SkippedSample(n, None, "bad") for n in range(60)))
    assert (stats.skipped, len(stats.skipped_samples)) == (180, 100)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_batch_with_too_many_damaged_samples_raises(place: Path, engine: Any) -> None:
    with LMDBDataset(place) as dataset:
        loader: Any = create_loader(dataset, **{**SKIP, **engine, "on_error": Skip(2 / LENGTH)})
        batches = iter(loader)
        assert same([[*next(batches)] for _ in range(5)], expected(0)[:5])
        message = (
            rf"too many samples are damaged, 3 of the 24 in an epoch \(12.5 %, on_error=Skip\(0.0833\d*\)\), such as "
            rf"sample {CUT} .*; sample {UNKNOWN} .*; sample {FLIPPED} .*; dbloader verify {place} --decode names all"
        )
        with pytest.raises(LoaderError, match=message):
            next(batches)
        assert loader.state_dict()["position"] == 20  # the failed batch was not received
        with pytest.raises(
            LoaderError, match=r"^an error ended this iterator \(LoaderError: too many samples are damaged"
        ):
            next(batches)
        loader.close()


@pytest.mark.parametrize(("engine", "share"), [(ENGINES[0], 0), (ENGINES[1], 0.5), (ENGINES[2], 1)])
def test_store_with_only_damaged_records_is_an_error(tmp_path: Path, engine: Any, share: float) -> None:
    write_store([Record(name_of(n), n, b"no image") for n in range(8)], tmp_path / "s.lmdb")
    with LMDBDataset(tmp_path / "s.lmdb") as dataset:
        loader = create_loader(dataset, **{**SKIP, **engine, "on_error": Skip(share)})
        with pytest.raises(LoaderError, match=r"too many samples are damaged, [158] of the 8 in an epoch"):
            next(iter(loader))
        loader.close()


def test_skip_does_not_change_batches_without_damage(place: Path) -> None:
    with LMDBDataset(place) as store:
        part = Subset(store, [index for index in range(LENGTH) if index not in DAMAGED])
        skipping = create_loader(part, **{**SKIP, "on_error": Skip(0)})
        raising = create_loader(part, **{**SKIP, "on_error": "raise"})
        assert same(all_of(skipping), all_of(raising))
        assert skipping.stats().skipped == 0
        assert "skipped" not in str(skipping.stats())


class Failing(Dataset[Any]):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        if index == CUT:
            raise self.error
        return torch.zeros(3, 4, 4, dtype=torch.uint8), index


NO_DAMAGE = (
    ValueError, KeyError, OSError, MemoryError, OptionError, PixelRangeError, DamagedStoreError, StoreNotFoundError,
    StoreUnreachableError,
)  # fmt: skip


@pytest.mark.parametrize("kind", NO_DAMAGE)
def test_errors_other_than_damage_are_raised(kind: type[Exception]) -> None:
    loader = create_loader(Failing(kind("of a test")), **SIZELESS, transform=None)
    with pytest.raises(kind, match="of a test"):
        all_of(loader)


def test_damage_errors_of_a_custom_dataset_are_skipped() -> None:
    loader = create_loader(Failing(DamagedRecordError("of a test")), **SIZELESS, transform=None)
    assert [label for _, labels in loader for label in labels.tolist()][4:7] == [ORDER[4], ORDER[6], ORDER[6]]
    (skipped,) = loader.stats().skipped_samples
    assert skipped == SkippedSample(CUT, None, "of a test")


def test_bug_in_a_transform_is_raised_even_with_damaged_samples(place: Path) -> None:
    def transform(image: Any) -> Any:
        raise ZeroDivisionError("of a test")

    with LMDBDataset(place) as dataset, pytest.raises(ZeroDivisionError, match="of a test"):
        all_of(create_loader(dataset, **SIZELESS, transform=transform))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"on_error": "skip"}, OptionError, r"on_error must be 'raise' or dbloader\.Skip\(share\), got 'skip'"),
        ({"sampler": [1, 2]}, OptionError, r"on_error=Skip\(.*\) needs one of dbloader's samplers, .*, got list"),
    ],
    ids=str,
)
def test_skip_refuses_invalid_options(place: Path, options: Any, error: type[Exception], message: str) -> None:
    with LMDBDataset(place) as dataset, pytest.raises(error, match=message):
        create_loader(dataset, **{**SKIP, "drop_last": False, **options})


@pytest.mark.parametrize(
    ("share", "error", "message"),
    [
        (1.5, OptionError, r"^share must be at least 0 and at most 1, got 1\.5$"),
        (True, TypeError, "^share must be a number, got True$"),
    ],
)
def test_skip_refuses_a_share_out_of_range(share: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Skip(share)
