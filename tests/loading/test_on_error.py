"""create_loader(on_error=Skip()) replaces each damaged sample by the next undamaged sample."""

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import Subset

from dbloader import LMDBDataset, MongoDataset, Record, Skip, create_loader, write_store
from dbloader.conversion.convert import convert
from dbloader.conversion.transcode import ImageFormat
from dbloader.decoding import DecodeTensor, RandomResizedCrop
from dbloader.sampling import BlockShuffleSampler, ClassBalancedSampler, OrderedSampler
from tests.support.children import WAIT_S
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

pytestmark = pytest.mark.filterwarnings("ignore:skipped the damaged sample:UserWarning")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_damaged(tmp_path_factory.mktemp("stores"))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_damaged_sample_is_replaced_by_the_next_for_any_workers(place: Path, engine: Any) -> None:
    with LMDBDataset(place) as dataset:
        loader = create_loader(dataset, **{**SKIP, **engine})
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
    def run_rank(rank: int) -> None:
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=rank, world_size=2)
        loader = create_loader(LMDBDataset(place), **SKIP)
        batches = []
        for images, labels in loader:
            # like gradients in a training, this hangs the other rank if a batch is missing
            dist.all_reduce(torch.ones(1))
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
def test_other_samplers_replace_a_damaged_sample_by_the_next(place: Path, sampler: Any) -> None:
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
    "options", [{}, {"transform": as_float}, {"collate_fn": stack_four}], ids=["tensor", "transform", "collate_fn"]
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
    options = {**SKIP, "is_training": False, "batch_size": 3, "on_error": Skip(0.5), "transform": DecodeTensor()}
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
    options = {**SKIP, "input_size": None}
    # the dataset has its own decoder, so the loader does not copy the dataset
    with MongoDataset(mongo_uri, decode=RandomResizedCrop(16)) as dataset:
        for engine in ({}, {"num_workers": 2, "worker_type": "threads"}):
            loader = create_loader(dataset, **{**options, **engine})
            assert same(all_of(loader), expected(0))
            reasons = {sample.index: sample.reason for sample in loader.stats().skipped_samples}
        loader = create_loader(dataset, **options)
        batches = iter(loader)
        begun = [[*next(batches)]]
        write_store([Record("other.jpg", 0, photo(0))], mongo_uri, overwrite=True)
        dataset.refresh()
        assert same(begun + all_of(batches), expected(0))  # from the old store, with which the epoch began
        assert {sample.name for sample in loader.stats().skipped_samples} == {*map(name_of, DAMAGED)}
    assert "it is missing" in reasons[CUT]
    assert "its CRC-32 is" in reasons[FLIPPED]
    assert "no known format" in reasons[UNKNOWN]
