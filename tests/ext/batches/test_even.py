"""create_loader(even_batches=True) gives all ranks the same number of equal batches, and marks the samples it adds."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import Subset

from dbloader import LMDBDataset, Record, Skip, create_loader, write_store
from dbloader.errors import OptionError
from tests.loading.test_create import CPU, LENGTH, photo
from tests.support.children import run_ranks
from tests.support.images import encoded
from tests.support.stores import store_samples


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stores") / "photos.lmdb"
    store_samples((Record(f"{n}.png", n % 3, encoded(photo(n), "PNG")) for n in range(LENGTH)), place)
    return place


@pytest.mark.parametrize("workers", [(0, "threads"), (2, "threads"), (2, "processes")])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("length", [33, 5])
def test_even_batches_are_equal_on_all_ranks_and_count_each_sample_once(
    tmp_path: Path, ranks: int, length: int, workers: tuple[int, str]
) -> None:
    image = encoded(photo(0), "JPEG")
    write_store(({"image": image, "label": index} for index in range(length)), tmp_path / "s.lmdb")

    def evaluate(rank: int) -> None:
        dataset = Subset(LMDBDataset(tmp_path / "s.lmdb"), range(length))
        options = {**CPU, "batch_size": 8, "num_workers": workers[0], "worker_type": workers[1]}
        loader = create_loader(dataset, even_batches=True, **options)
        sums, seen = torch.zeros(2, dtype=torch.int64), []
        for images, labels, valid in loader:
            assert images.shape == (8, 3, 16, 16)
            assert (valid.shape, valid.dtype) == ((8,), torch.bool)
            batch = torch.stack([labels[valid].sum(), valid.sum()])
            torch.distributed.all_reduce(batch)  # hangs if a rank has fewer batches
            sums += batch
            seen += labels[valid].tolist()
        assert sums.tolist() == [sum(range(length)), length]
        assert (len(loader), seen) == (-(-length // (8 * ranks)), [*range(rank, length, ranks)])

    run_ranks(evaluate, tmp_path, ranks)


def test_even_batches_mark_added_samples_in_dicts_and_after_resuming(place: Path) -> None:
    dataset = LMDBDataset(place, fields=("image", "index"))
    loader = create_loader(dataset, even_batches=True, **{**CPU, "batch_size": 8})
    batches = iter(loader)
    next(batches)
    next(batches)
    state = loader.state_dict()
    assert next(batches)["valid"].tolist() == [True] * 6 + [False] * 2
    loader.load_state_dict(state)
    [last] = loader
    assert (last["valid"].tolist(), last["index"].tolist()) == ([True] * 6 + [False] * 2, [*range(16, 22), 0, 1])
    loader = create_loader(dataset, even_batches=True, collate_fn=len, **{**CPU, "normalize": None})
    with pytest.raises(OptionError, match=r"needs .* tuples, lists, or dicts without the key 'valid', got a int: "):
        next(iter(loader))
    for options, message in (
        ({"is_training": True}, "is for evaluation in order"),
        ({"sampler": [0]}, "is for evaluation in order"),
        ({"on_error": Skip()}, "counts each sample once"),
    ):
        with pytest.raises(OptionError, match=f"even_batches=True {message}"):
            create_loader(dataset, even_batches=True, **CPU, **options)
