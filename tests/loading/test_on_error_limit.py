"""create_loader(on_error=Skip()): warnings, statistics and the limit of damaged samples."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Subset

from dbloader import LMDBDataset, Record, Skip, create_loader, write_store
from dbloader.batches.timed import SkippedSample
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
from tests.support.damaged import (
    CUT,
    DAMAGED,
    ENGINES,
    FLIPPED,
    LENGTH,
    ORDER,
    SKIP,
    UNKNOWN,
    all_of,
    expected,
    name_of,
    write_damaged,
)
from tests.support.samples import same

pytestmark = pytest.mark.filterwarnings("ignore:skipped the damaged sample:UserWarning")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_damaged(tmp_path_factory.mktemp("stores"))


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


def test_control_characters_of_a_name_are_escaped() -> None:
    assert str(SkippedSample(3, "a\x1b[2J\nb.jpg", "bad")) == r"sample 3 (a\x1b[2J\nb.jpg): bad"
    assert str(SkippedSample(3, "Grüße.jpg", "bad")) == "sample 3 (Grüße.jpg): bad"
    assert str(SkippedSample(3, None, "bad")) == "sample 3: bad"


def test_at_most_a_hundred_samples_are_listed() -> None:
    stats = Stats()
    for _ in range(3):
        stats.skip(tuple(SkippedSample(n, None, "bad") for n in range(60)))
    assert (stats.skipped, len(stats.skipped_samples)) == (180, 100)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_too_many_damaged_samples_raise_at_the_batch_that_exceeds_the_limit(place: Path, engine: Any) -> None:
    with LMDBDataset(place) as dataset:
        loader: Any = create_loader(dataset, **{**SKIP, **engine, "on_error": Skip(2 / LENGTH)})
        batches = iter(loader)
        assert same([[*next(batches)] for _ in range(5)], expected(0)[:5])
        message = (
            rf"too many samples are damaged, 3 of the 24 of an epoch \(12.5 %, on_error=Skip\(0.0833\d*\)\), such as "
            rf"sample {CUT} .*; sample {UNKNOWN} .*; sample {FLIPPED} .*; dbloader verify {place} --decode names all"
        )
        with pytest.raises(LoaderError, match=message):
            next(batches)
        assert loader.state_dict()["position"] == 20  # the failed batch was not received
        with pytest.raises(StopIteration):
            next(batches)
        loader.close()


@pytest.mark.parametrize(("engine", "share"), [(ENGINES[0], 0), (ENGINES[1], 0.5), (ENGINES[2], 1)])
def test_store_with_only_damaged_records_is_an_error(tmp_path: Path, engine: Any, share: float) -> None:
    write_store([Record(name_of(n), n, b"no image") for n in range(8)], tmp_path / "s.lmdb")
    with LMDBDataset(tmp_path / "s.lmdb") as dataset:
        loader = create_loader(dataset, **{**SKIP, **engine, "on_error": Skip(share)})
        with pytest.raises(LoaderError, match=r"too many samples are damaged, [158] of the 8 of an epoch"):
            next(iter(loader))
        loader.close()


def test_each_epoch_counts_damaged_samples_from_zero(place: Path) -> None:
    with LMDBDataset(place) as dataset:
        loader = create_loader(dataset, **{**SKIP, "on_error": Skip(3 / LENGTH)})
        for _ in range(3):
            assert len([*loader]) == 6


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
def test_only_damage_errors_are_skipped(kind: type[Exception]) -> None:
    loader = create_loader(Failing(kind("of a test")), **SKIP, transform=None)
    with pytest.raises(kind, match="of a test"):
        all_of(loader)


def test_damage_errors_of_a_custom_dataset_are_skipped() -> None:
    loader = create_loader(Failing(DamagedRecordError("of a test")), **SKIP, transform=None)
    assert [label for _, labels in loader for label in labels.tolist()][4:7] == [ORDER[4], ORDER[6], ORDER[6]]
    (skipped,) = loader.stats().skipped_samples
    assert skipped == SkippedSample(CUT, None, "of a test")


def test_bug_in_a_transform_is_raised_even_with_damaged_samples(place: Path) -> None:
    def transform(image: Any) -> Any:
        raise ZeroDivisionError("of a test")

    with LMDBDataset(place) as dataset, pytest.raises(ZeroDivisionError, match="of a test"):
        all_of(create_loader(dataset, **SKIP, transform=transform))


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
