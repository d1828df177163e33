"""Batches move to a device as they are nested, and keep their types."""

import dataclasses
import pickle
import types
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from dbloader.device import CudaTransfer, Transfer, create_transfer, resolve_device, to_device
from dbloader.errors import LoaderError, OptionError
from dbloader.prefetch import PrefetchLoader

# The meta device is always there, and nothing is on it by itself: what is on it afterwards has moved.
META = torch.device("meta")

cuda = pytest.mark.cuda
without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without CUDA")


class Pair(NamedTuple):
    image: Any
    label: Any


Untyped = namedtuple("Untyped", ["image", "name"])


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    image: Any
    name: str


@dataclasses.dataclass
class Checked:
    image: Any
    made: int = dataclasses.field(init=False)
    unset: Any = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.made = 1


@dataclasses.dataclass
class Defaulted:
    image: torch.Tensor = torch.zeros(1)  # noqa: RUF009 - a tensor is no list


class Attributes(dict[str, Any]):
    """A dictionary that answers every name, as some libraries' do: with KeyError for `to`."""

    __getattr__ = dict.__getitem__


class Tags(list[Any]):
    tag = ""


class Mover:
    """Moves itself, like a BatchEncoding."""

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def to(self, device: Any) -> "Mover":
        return Mover(device)


class Stopping:
    def to(self, device: Any) -> "Stopping":
        raise StopIteration


def tensor() -> torch.Tensor:
    return torch.zeros(2)


@pytest.mark.parametrize(
    "make",
    [
        lambda leaf: leaf,
        lambda leaf: (leaf, 1),
        lambda leaf: [leaf, None],
        lambda leaf: {"image": leaf, "name": "a.jpg"},
        lambda leaf: Pair(leaf, 3),
        lambda leaf: Untyped(leaf, "a.jpg"),
        lambda leaf: OrderedDict(image=leaf, name="a.jpg"),
        lambda leaf: Attributes(image=leaf),
        lambda leaf: types.MappingProxyType({"image": leaf}),
        lambda leaf: Frozen(leaf, "a.jpg"),
        lambda leaf: Checked(leaf),
        lambda leaf: Tags([leaf]),
        lambda leaf: [{"a": (Pair([leaf], {}), "b")}, Frozen({"c": [leaf, leaf]}, "d"), 5, 2.5, b"e", True],
    ],
)
def test_tensors_move_and_everything_around_them_keeps_its_type_and_value(make: Any) -> None:
    moved = to_device(make(tensor()), META)
    assert type(moved) is type(make(tensor()))
    assert repr(moved) == repr(make(tensor().to(META)))  # tensors do not compare to one truth value


@pytest.mark.parametrize("leaf", [None, "a", b"a", 1, 2.5, True, np.zeros(2), {1, 2}, torch.float32, Mover, Defaulted])
def test_what_cannot_move_stays_the_same_object(leaf: Any) -> None:
    assert to_device(leaf, META) is leaf
    assert to_device([leaf, tensor()], META)[0] is leaf


def test_a_batch_in_which_nothing_moves_stays_the_same_object() -> None:
    batch = [tensor(), (tensor(), {"a": [tensor()]}), Frozen(tensor(), "b"), torch.Size([2])]
    assert to_device(batch, "cpu") is batch


def test_a_part_in_which_nothing_moves_stays_the_same_object() -> None:
    names = ["a.jpg", "b.jpg"]
    assert to_device((tensor(), names), META)[1] is names


def test_the_batch_itself_is_not_changed() -> None:
    batch = {"images": [tensor()]}
    to_device(batch, META)
    assert batch["images"][0].device.type == "cpu"


def test_a_container_keeps_what_else_it_holds() -> None:
    tags = Tags([tensor()])
    tags.tag = "kept"
    assert to_device(tags, META).tag == "kept"
    groups: Any = defaultdict(list, image=tensor())
    assert to_device(groups, META)["other"] == []
    counts: Any = Counter({"a": 1})
    counts["a"] = tensor()
    assert to_device(counts, META)["a"].device == META
    assert to_device(Checked(tensor()), META).made == 1


def test_what_torch_returns_as_named_results_keeps_its_type() -> None:
    moved = to_device(torch.max(torch.rand(3, 3), dim=0), META)
    assert type(moved) is torch.return_types.max
    assert (moved.values.device, moved.indices.device) == (META, META)


def test_an_object_that_moves_itself_does_so_even_if_it_is_a_tuple() -> None:
    assert to_device([Mover()], META)[0].device == META
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = to_device({"packed": packed}, META)["packed"]
    assert type(moved) is PackedSequence
    assert (moved.data.device, moved.batch_sizes.device.type) == (META, "cpu")


# Which device


def test_auto_is_the_best_device_present() -> None:
    resolved = resolve_device("auto")
    assert resolved.type in {"cuda", "mps", "cpu"}
    if torch.cuda.is_available():
        assert resolved.type == "cuda"


@pytest.mark.parametrize("device", ["cpu", "meta", torch.device("cpu")])
def test_other_devices_are_taken_as_they_are_named(device: Any) -> None:
    assert resolve_device(device) == torch.device(device)


@without_cuda
@pytest.mark.parametrize("device", ["cuda", "cuda:3", 0, torch.device("cuda")])
def test_cuda_where_there_is_none_is_an_error_with_a_remedy(device: Any) -> None:
    with pytest.raises(OptionError, match=r'torch finds 0 CUDA devices here, got device=.*: use device="auto"'):
        PrefetchLoader([], device=device)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="is about machines without MPS")
def test_mps_where_there_is_none_is_an_error_with_a_remedy() -> None:
    with pytest.raises(OptionError, match=r"torch finds no MPS device here, got device='mps': use device=\"auto\""):
        PrefetchLoader([], device="mps")


@pytest.mark.parametrize("device", ["gpu", "", "cuda:x", -1])
def test_a_device_that_torch_does_not_know_is_an_error_with_a_remedy(device: Any) -> None:
    with pytest.raises(OptionError, match=f'device must be one that torch knows, got {device!r}: use device="auto"'):
        PrefetchLoader([], device=device)


# In a loader


def test_a_loader_moves_its_batches_in_its_thread() -> None:
    batches = [(torch.zeros(2), ["a", "b"]), (torch.ones(2), ["c", "d"])]
    loader = PrefetchLoader(batches, device="meta")
    assert loader.device == META
    assert [(images.device, names) for images, names in loader] == [(META, ["a", "b"]), (META, ["c", "d"])]


def test_without_a_device_the_batches_stay_the_same_objects() -> None:
    batches = [(torch.zeros(2), ["a", "b"])]
    loader = PrefetchLoader(batches)
    assert loader.device is None
    assert next(iter(loader)) is batches[0]


def test_an_error_in_moving_arrives_at_its_place() -> None:
    class Refusing:
        def to(self, device: Any) -> None:
            raise ValueError(f"not to {device}")

    iterator = iter(PrefetchLoader[Any]([1, Refusing(), 3], device="cpu"))
    assert next(iterator) == 1
    with pytest.raises(ValueError, match="not to cpu"):
        next(iterator)
    assert list(iterator) == []


def test_stop_iteration_in_moving_is_an_error_and_no_short_epoch() -> None:
    with pytest.raises(LoaderError, match="StopIteration was raised in the making of a sample or batch"):
        list(PrefetchLoader([1, Stopping(), 3], device="cpu"))


def test_a_transfer_to_a_device_without_streams_is_one_step() -> None:
    transfer = create_transfer("cpu")
    assert type(transfer) is Transfer
    batch = [tensor()]
    assert transfer.receive(transfer.prepare(batch)) is batch


def test_a_cuda_transfer_is_pickled_without_its_stream() -> None:
    transfer = pickle.loads(pickle.dumps(CudaTransfer(torch.device("cuda:1"))))  # noqa: S301
    assert type(transfer) is CudaTransfer
    assert transfer.device == torch.device("cuda:1")


# On a GPU


@pytest.fixture
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return torch.device("cuda", torch.cuda.current_device())


@cuda
def test_batches_arrive_on_the_gpu_with_their_values(gpu: torch.device) -> None:
    batches: list[dict[str, Any]] = [
        {"image": torch.full((64, 64), float(number)), "name": str(number)} for number in range(50)
    ]
    for number, batch in enumerate(PrefetchLoader(batches, device="cuda")):
        assert batch["image"].device == gpu
        assert (batch["image"].sum().item(), batch["name"]) == (64 * 64 * number, str(number))


@cuda
def test_work_on_a_batch_that_was_dropped_at_once_is_not_overwritten(gpu: torch.device) -> None:
    # Each batch is dropped while slow work on it is still queued: memory that was reused too early shows in its sum.
    batches = [torch.full((256, 1024, 1024), number, dtype=torch.uint8) for number in range(4)] * 6
    weight = torch.rand(4096, 4096, device=gpu)
    sums = []
    for batch in PrefetchLoader(batches, device="cuda", depth=3):
        for _ in range(20):
            weight = torch.nn.functional.normalize(weight @ weight)
        sums.append(batch.sum(dtype=torch.int64))
        del batch
    expected = [number * 256 * 1024 * 1024 for number in range(4)] * 6
    assert [value.item() for value in sums] == expected


@cuda
def test_a_consumer_on_a_stream_of_its_own_gets_whole_batches(gpu: torch.device) -> None:
    batches = [torch.full((64, 1024, 1024), number, dtype=torch.uint8) for number in range(20)]
    with torch.cuda.stream(torch.cuda.Stream(gpu)):  # type: ignore[no-untyped-call]
        sums = [batch.sum(dtype=torch.int64) for batch in PrefetchLoader(PrefetchLoader(batches, "cuda"), "cuda")]
        assert [value.item() for value in sums] == [number * 64 * 1024 * 1024 for number in range(20)]


@cuda
def test_the_loader_has_one_stream_for_all_epochs(gpu: torch.device) -> None:
    loader = PrefetchLoader([torch.zeros(2)] * 3, device="cuda")
    streams = set()
    for _ in range(3):
        assert all(batch.device == gpu for batch in loader)
        assert isinstance(loader._transfer, CudaTransfer)
        streams.add(loader._transfer._stream)
    assert len(streams) == 1


@cuda
def test_what_is_not_one_block_of_memory_arrives_too(gpu: torch.device) -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    batch = (torch.eye(3).to_sparse(), packed, torch.nn.Parameter(torch.ones(2)), torch.ones(3, device=gpu))
    sparse, moved, parameter, there = next(iter(PrefetchLoader([batch], device="cuda")))
    assert [part.device for part in (sparse, moved.data, parameter, there)] == [gpu] * 4
    assert sparse.to_dense().sum().item() == 3.0
    assert moved.batch_sizes.device.type == "cpu"


@cuda
def test_the_current_device_of_the_consumer_is_left_alone(gpu: torch.device) -> None:
    list(PrefetchLoader([torch.zeros(2)], device=f"cuda:{torch.cuda.device_count() - 1}"))
    assert torch.cuda.current_device() == gpu.index


@cuda
def test_a_gpu_that_is_not_there_is_an_error(gpu: torch.device) -> None:
    count = torch.cuda.device_count()
    assert count > gpu.index
    with pytest.raises(OptionError, match=f"torch finds {count} CUDA devices here, got device='cuda:{count}'"):
        PrefetchLoader([], device=f"cuda:{count}")
