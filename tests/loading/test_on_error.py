"""create_loader(on_error="skip"): what takes the place of damaged samples, who is told, and where it ends."""

import multiprocessing
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import Dataset, Subset

from dbloader import LMDBDataset, MongoDataset, Record, create_loader, write_store
from dbloader.batches.skipped import SkippedSample
from dbloader.conversion.convert import convert
from dbloader.conversion.transcode import ImageFormat
from dbloader.decoding import RandomResizedCrop
from dbloader.errors import (
    DamagedImageError,
    DamagedRecordError,
    DamagedStoreError,
    LoaderError,
    OptionError,
    PixelRangeError,
    StoreNotFoundError,
    StoreUnreachableError,
)
from dbloader.loading.stats import Stats
from dbloader.sampling import (
    BlockShuffleSampler,
    ClassBalancedSampler,
    OrderedSampler,
    SampleRNG,
    ShuffleSampler,
)
from tests.support.children import WAIT_S
from tests.support.images import photo, plant
from tests.support.mongo import Server
from tests.support.mongo_stores import database_of, records_in
from tests.support.samples import same

LENGTH = 24
SEED = 5
ORDER = [*ShuffleSampler(range(LENGTH), seed=SEED)]
# In the first epoch the second is the next after the first, and after the last one comes the first of the order.
CUT, UNKNOWN, FLIPPED = ORDER[5], ORDER[6], ORDER[-1]
DAMAGED = (CUT, UNKNOWN, FLIPPED)
SKIP: dict[str, Any] = {
    "batch_size": 4, "input_size": 16, "device": None, "mean": None, "std": None, "is_training": True, "seed": SEED,
    "num_workers": 0, "on_error": "skip", "max_skipped": 0.2,
}  # fmt: skip
ENGINES = [
    {"workers": "threads", "num_workers": 0},
    {"workers": "threads", "num_workers": 2},
    {"workers": "processes", "num_workers": 0, "use_prefetcher": False},
    pytest.param({"workers": "processes", "num_workers": 2}, marks=pytest.mark.slow),
]
pytestmark = pytest.mark.filterwarnings("ignore:skipped the damaged sample:UserWarning")


def name_of(index: int) -> str:
    return f"{index % 2}/{index:02}.jpg"


def flip(place: Path, data: bytes) -> None:
    """Flip a bit in the middle of some bytes in a file."""
    stored = bytearray(place.read_bytes())
    at = stored.index(data) + len(data) // 2
    stored[at] ^= 1
    place.write_bytes(stored)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two images that were damaged when they were stored, and one that was damaged in the store."""
    folder = tmp_path_factory.mktemp("stores")
    files = {name_of(index): photo(index) for index in range(LENGTH)}
    files |= {name_of(CUT): photo(CUT)[:-300], name_of(UNKNOWN): b"no image"}
    listing = "\n".join(["path,label", *(f"{name_of(index)},{index}" for index in range(LENGTH))])
    (folder / "listing.csv").write_text(listing)
    place = folder / "photos.lmdb"
    convert(plant(folder / "images", files), place, listing=folder / "listing.csv", check="none")
    flip(place, photo(FLIPPED))
    return place


def replaced(epoch: int, position: int) -> int:
    """The index that belongs at a position of an epoch: that of the permutation, or the next undamaged one."""
    sampler = ShuffleSampler(range(LENGTH), 1, 0, seed=SEED)
    sampler.set_epoch(epoch)
    order: list[int] = [*sampler]
    return next(index for index in order[position:] + order if index not in DAMAGED)


def expected(epoch: int, positions: range = range(LENGTH)) -> list[list[torch.Tensor]]:
    decode = RandomResizedCrop(16)
    images, labels = [], []
    for position in positions:
        numbers = SampleRNG(SEED, epoch, [position]).uniform(decode.draws, "decode")[0]
        labels.append(replaced(epoch, position))
        images.append(decode(photo(labels[-1]), numbers))
    return [[torch.stack(images[n : n + 4]), torch.tensor(labels[n : n + 4])] for n in range(0, len(labels), 4)]


def all_of(loader: Any) -> list[Any]:
    return [[part.clone() for part in batch] for batch in loader]


# The replacement


def test_the_first_epoch_has_a_run_of_damaged_samples_and_one_at_its_end() -> None:
    assert replaced(0, 5) == replaced(0, 6) == ORDER[7]
    assert replaced(0, LENGTH - 1) == ORDER[0]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_the_next_sample_of_the_order_takes_the_place_whoever_makes_the_batch(place: Path, engine: Any) -> None:
    with LMDBDataset(place) as dataset:
        loader = create_loader(dataset, **{**SKIP, **engine})
        for epoch in range(3):  # from the second on, the workers know what was damaged before
            assert same(all_of(loader), expected(epoch))
            assert loader.stats().skipped == 3
        loader.close()


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("received", [1, 2, 5])
def test_a_resumed_loader_goes_on_with_the_same_batches(place: Path, engine: Any, received: int) -> None:
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


def test_two_ranks_both_end_with_the_same_number_of_whole_batches(place: Path, tmp_path: Path) -> None:
    def run_rank(rank: int) -> None:
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=rank, world_size=2)
        loader = create_loader(LMDBDataset(place), **SKIP)
        batches = []
        for images, labels in loader:
            dist.all_reduce(torch.ones(1))  # as the gradients of a training: a missing batch would hang the other rank
            batches.append([images.clone(), labels])
        assert same(batches, expected(0, range(rank, LENGTH, 2)))
        assert [len(labels) for _, labels in batches] == [4, 4, 4]
        dist.destroy_process_group()

    ranks = [multiprocessing.get_context("fork").Process(target=run_rank, args=(rank,)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(WAIT_S)
        assert process.exitcode == 0
        process.close()


@pytest.mark.parametrize(
    "sampler",
    [
        OrderedSampler(range(LENGTH)),
        BlockShuffleSampler(range(LENGTH), 4, 2, seed=2),
        ClassBalancedSampler([0, *[1] * (LENGTH - 1)], 2 * LENGTH, seed=2),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_in_any_other_order_of_ours_the_next_of_that_order_takes_the_place(place: Path, sampler: Any) -> None:
    order = [*sampler]
    wanted = [next(i for i in order[n:] + order if i not in DAMAGED) for n in range(len(order))]
    with LMDBDataset(place) as dataset:
        loader = create_loader(dataset, sampler=sampler, **{**SKIP, "drop_last": False, "max_skipped": 0.5})
        assert [label for _, labels in loader for label in labels.tolist()] == wanted
        assert loader.stats().skipped == sum(index in DAMAGED for index in order) > 0


def as_float(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((8, 8)), np.float32))


def stack_four(samples: list[Any]) -> list[torch.Tensor]:
    assert len(samples) == 4, "a batch, not a single sample"
    return [torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])]


@pytest.mark.parametrize(
    "options", [{}, {"transform": as_float}, {"collate_fn": stack_four}], ids=["tensor", "transform", "collate_fn"]
)
@pytest.mark.parametrize("part", [False, True])
def test_transforms_collate_functions_and_subsets_get_whole_batches(place: Path, options: Any, part: bool) -> None:
    with LMDBDataset(place) as store:
        dataset: Any = Subset(store, range(LENGTH - 1, -1, -1)) if part else store
        loader = create_loader(dataset, **{**SKIP, **options})
        labels = torch.cat([labels for _, labels in loader]).tolist()
        order = [LENGTH - 1 - index if part else index for index in ORDER]
        assert labels == [next(i for i in order[n:] + order if i not in DAMAGED) for n in range(LENGTH)]
        listed = {(sample.index, sample.name) for sample in loader.stats().skipped_samples}
        assert listed == {(LENGTH - 1 - index if part else index, name_of(index)) for index in DAMAGED}


@pytest.mark.parametrize("images", [ImageFormat(tile=True), ImageFormat(raw=True)], ids=["tiled", "raw"])
def test_tiled_and_raw_images_are_replaced_too(tmp_path: Path, images: ImageFormat) -> None:
    plant(tmp_path / "images", {f"{n % 2}/{n}.jpg": photo(n, 200, 150) for n in range(6)})
    place = tmp_path / "s.lmdb"
    convert(tmp_path / "images", place, images=images)
    with LMDBDataset(place) as dataset:
        stored: Any = dataset.record(4).image
    flip(place, stored if isinstance(stored, bytes) else stored.tobytes())
    options = {**SKIP, "is_training": False, "batch_size": 2}
    with LMDBDataset(place, fields=("image", "index")) as dataset:
        loader = create_loader(dataset, **options)
        indices = [index for batch in loader for index in batch["index"].tolist()]
    assert indices == [0, 1, 2, 3, 5, 5]


def test_damaged_and_missing_records_in_mongodb_are_replaced_too(mongo_server: Server, mongo_uri: str) -> None:
    write_store([Record(name_of(n), n, b"no image" if n == UNKNOWN else photo(n)) for n in range(LENGTH)], mongo_uri)
    with database_of(mongo_server, mongo_uri) as database:
        records_in(database).update_one({"_id": FLIPPED}, {"$set": {"label": 5}})
        records_in(database).delete_one({"_id": CUT})
    with MongoDataset(mongo_uri) as dataset:
        for engine in ({}, {"num_workers": 2, "workers": "threads"}):
            loader = create_loader(dataset, **{**SKIP, **engine})
            assert same(all_of(loader), expected(0))
            reasons = {sample.index: sample.reason for sample in loader.stats().skipped_samples}
    assert "it is missing" in reasons[CUT]
    assert "its CRC-32 is" in reasons[FLIPPED]
    assert "no known format" in reasons[UNKNOWN]


# Who is told


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_the_stats_count_and_list_what_was_skipped_of_all_workers(place: Path, engine: Any) -> None:
    with LMDBDataset(place) as dataset:
        loader = create_loader(dataset, **{**SKIP, **engine})
        batches = iter(loader)
        counts = [loader.stats().skipped for _ in batches]
        assert counts == [0, 2, 2, 2, 2, 3]  # when the batch is received, however much was prepared ahead
        stats = loader.stats()
        loader.close()
    assert [(sample.index, sample.name) for sample in stats.skipped_samples] == [(n, name_of(n)) for n in DAMAGED]
    cut, unknown, flipped = (sample.reason for sample in stats.skipped_samples)
    assert cut.startswith("the image does not decode: ")
    assert unknown.startswith("the image is in no known format: it begins with b'no i'")
    assert flipped.startswith(f"record {FLIPPED} ({name_of(FLIPPED)}) of {place} is damaged: its CRC-32 is ")
    assert str(stats).endswith("; 3 damaged samples skipped")


def test_each_damaged_sample_is_warned_about_once_in_one_line(place: Path) -> None:
    with LMDBDataset(place) as dataset, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for use_prefetcher in (True, False):
            caught.clear()
            loader = create_loader(dataset, **SKIP, use_prefetcher=use_prefetcher)
            for _ in range(2):
                for _ in loader:
                    pass
            assert [warning.filename for warning in caught] == [__file__] * 3
            for index, warning in zip(DAMAGED, caught, strict=True):
                text = str(warning.message)
                assert text.startswith(f"skipped the damaged sample {index} ({name_of(index)}): ")
                assert text.endswith(f"; dbloader verify {place} --decode names all damaged records")
                assert "\n" not in text


def test_a_name_with_control_characters_does_not_reach_the_terminal() -> None:
    assert str(SkippedSample(3, "a\x1b[2J\nb.jpg", "bad")) == r"sample 3 (a\x1b[2J\nb.jpg): bad"
    assert str(SkippedSample(3, "Grüße.jpg", "bad")) == "sample 3 (Grüße.jpg): bad"
    assert str(SkippedSample(3, None, "bad")) == "sample 3: bad"


def test_at_most_a_hundred_samples_are_listed() -> None:
    stats = Stats()
    for _ in range(3):
        stats.skip(tuple(SkippedSample(n, None, "bad") for n in range(60)))
    assert (stats.skipped, len(stats.skipped_samples)) == (180, 100)


# Where it ends


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_above_the_share_the_batch_is_an_error_at_its_place(place: Path, engine: Any) -> None:
    with LMDBDataset(place) as dataset:
        loader: Any = create_loader(dataset, **{**SKIP, **engine, "max_skipped": 2 / LENGTH})
        batches = iter(loader)
        assert same([[*next(batches)] for _ in range(5)], expected(0)[:5])
        message = (
            rf"too many samples are damaged, 3 of the 24 of an epoch \(12.5 %, max_skipped=0.0833\d*\), such as "
            rf"sample {CUT} .*; sample {UNKNOWN} .*; sample {FLIPPED} .*; dbloader verify {place} --decode names all"
        )
        with pytest.raises(LoaderError, match=message):
            next(batches)
        assert loader.state_dict()["position"] == 20  # that batch was not received
        with pytest.raises(StopIteration):
            next(batches)
        loader.close()


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("max_skipped", [0, 0.5, 1])
def test_a_store_with_nothing_but_damaged_records_ends_with_an_error(
    tmp_path: Path, engine: Any, max_skipped: float
) -> None:
    write_store([Record(name_of(n), n, b"no image") for n in range(8)], tmp_path / "s.lmdb")
    with LMDBDataset(tmp_path / "s.lmdb") as dataset:
        loader = create_loader(dataset, **{**SKIP, **engine, "max_skipped": max_skipped})
        with pytest.raises(LoaderError, match=r"too many samples are damaged, [158] of the 8 of an epoch"):
            next(iter(loader))
        loader.close()


def test_the_count_begins_again_with_each_epoch(place: Path) -> None:
    with LMDBDataset(place) as dataset:
        loader = create_loader(dataset, **{**SKIP, "max_skipped": 3 / LENGTH})
        for _ in range(3):
            assert len([*loader]) == 6


def test_where_nothing_is_damaged_nothing_changes(place: Path) -> None:
    with LMDBDataset(place) as store:
        part = Subset(store, [index for index in range(LENGTH) if index not in DAMAGED])
        skipping = create_loader(part, **{**SKIP, "max_skipped": 0})
        raising = create_loader(part, **{**SKIP, "on_error": "raise"})
        assert same(all_of(skipping), all_of(raising))
        assert skipping.stats().skipped == 0
        assert "skipped" not in str(skipping.stats())


def test_by_default_the_error_comes_out(place: Path) -> None:
    with LMDBDataset(place) as dataset:
        loader = create_loader(dataset, **{**SKIP, "on_error": "raise", "batch_size": 6})
        with pytest.raises(DamagedImageError, match="the image does not decode"):
            next(iter(loader))


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
def test_mistakes_lack_of_memory_and_lost_stores_are_always_raised(kind: type[Exception]) -> None:
    loader = create_loader(Failing(kind("of a test")), **SKIP, transform=None)
    with pytest.raises(kind, match="of a test"):
        all_of(loader)


def test_a_dataset_of_your_own_says_by_the_error_that_a_sample_is_damaged() -> None:
    loader = create_loader(Failing(DamagedRecordError("of a test")), **SKIP, transform=None)
    assert [label for _, labels in loader for label in labels.tolist()][4:7] == [ORDER[4], ORDER[6], ORDER[6]]
    (skipped,) = loader.stats().skipped_samples
    assert skipped == SkippedSample(CUT, None, "of a test")


def test_a_bug_of_a_transform_is_raised_in_a_batch_with_damage_too(place: Path) -> None:
    def transform(image: Any) -> Any:
        raise ZeroDivisionError("of a test")

    with LMDBDataset(place) as dataset, pytest.raises(ZeroDivisionError, match="of a test"):
        all_of(create_loader(dataset, **SKIP, transform=transform))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"on_error": "ignore"}, OptionError, "on_error must be one of raise, skip, got 'ignore'"),
        ({"max_skipped": 1.5}, OptionError, "max_skipped must be at least 0 and at most 1, got 1.5"),
        ({"max_skipped": True}, TypeError, "max_skipped must be a number, got True"),
        ({"sampler": [1, 2]}, OptionError, "on_error='skip' needs one of dbloader's samplers, .*, got list"),
        ({"decode_on": "device", "device": "cpu"}, OptionError, "on_error='skip' needs decode_on='workers'"),
    ],
    ids=str,
)
def test_what_cannot_be_right_is_refused(place: Path, options: Any, error: type[Exception], message: str) -> None:
    with LMDBDataset(place) as dataset, pytest.raises(error, match=message):
        create_loader(dataset, **{**SKIP, "drop_last": False, **options})
