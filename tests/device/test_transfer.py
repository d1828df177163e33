"""Batches move to a device as they are nested, and keep their types."""

import contextlib
import dataclasses
import pickle
import types
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from dbloader.device.transfer import (
    CudaTransfer,
    create_transfer,
    is_recordable,
    record,
    resolve_device,
    to_device,
)
from dbloader.errors import OptionError
from dbloader.loading.prefetch import PrefetchLoader

# The meta device is always there, and nothing is on it by itself: what is on it afterwards has moved.
META = torch.device("meta")

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


class Tokens(UserDict[str, Any]):
    """Moves its tensors in place and gives itself, as a BatchEncoding does."""

    def to(self, device: Any) -> "Tokens":
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


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
    batch = make(tensor())
    moved = to_device(batch, META)
    assert type(moved) is type(batch)
    assert repr(moved) == repr(make(tensor().to(META)))  # tensors do not compare to one truth value
    assert repr(batch) == repr(make(tensor()))


@pytest.mark.parametrize("leaf", [None, "a", b"a", 1, 2.5, True, np.zeros(2), {1, 2}, torch.float32, Mover, Defaulted])
def test_what_cannot_move_stays_the_same_object(leaf: Any) -> None:
    assert to_device(leaf, META) is leaf
    assert to_device([leaf, tensor()], META)[0] is leaf


def test_a_batch_in_which_nothing_moves_stays_the_same_object() -> None:
    batch = [tensor(), (tensor(), {"a": [tensor()]}), Frozen(tensor(), "b"), torch.Size([2])]
    assert to_device(batch, "cpu") is batch
    names = ["a.jpg", "b.jpg"]
    assert to_device((tensor(), names), META)[1] is names


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


def test_a_user_dict_is_moved_by_its_values_and_stays_as_it_was() -> None:
    tokens = Tokens(ids=tensor())
    moved = to_device(tokens, META)
    assert (type(moved), moved["ids"].device) == (Tokens, META)
    assert tokens["ids"].device.type == "cpu"


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


def test_an_error_in_moving_arrives_at_its_place() -> None:
    class Refusing:
        def to(self, device: Any) -> None:
            raise ValueError(f"not to {device}")

    iterator = iter(PrefetchLoader[Any]([1, Refusing(), 3], device="cpu"))
    assert next(iterator) == 1
    with pytest.raises(ValueError, match="not to cpu"):
        next(iterator)
    assert list(iterator) == []


def test_what_follows_gets_the_batch_on_the_device_and_takes_its_place() -> None:
    def follow(batch: Any) -> Any:
        assert batch["image"].device == META
        return batch["image"], "prepared"

    transfer = create_transfer("meta")
    image, word = transfer.receive(transfer.prepare({"image": tensor()}, follow))
    assert (image.device, word) == (META, "prepared")


def test_a_cuda_transfer_is_pickled_without_its_stream() -> None:
    transfer = pickle.loads(pickle.dumps(CudaTransfer(torch.device("cuda:1"))))  # noqa: S301
    assert type(transfer) is CudaTransfer
    assert transfer.device == torch.device("cuda:1")


# The order of what CUDA is asked to do, on a device of CUDA that is not there


class Event:
    def __init__(self, name: str) -> None:
        self.name = name


class Stream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log
        self.events = 0

    def record_event(self) -> Event:
        self.events += 1
        event = Event(f"{self.name} {self.events}")
        self.log.append(f"{event.name} recorded")
        return event

    def wait_event(self, event: Event) -> None:
        self.log.append(f"{self.name} waits for {event.name}")

    def wait_stream(self, stream: "Stream") -> None:
        self.log.append(f"{self.name} waits for all of {stream.name}")


class Graph:
    """Is moved, pinned and recorded as a whole, like a graph of PyTorch Geometric; it knows what was done to it."""

    is_cuda = False

    def __init__(self, name: str, cuda: "Cuda", *, is_cuda: bool = False) -> None:
        self.name = name
        self.cuda = cuda
        self.is_cuda = is_cuda

    def pin_memory(self) -> "Graph":
        self.cuda.log.append(f"{self.name} pinned")
        return Graph(self.name, self.cuda)

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "Graph":
        self.cuda.log.append(f"{self.name} to {device} on {self.cuda.current.name}{' at leisure' * non_blocking}")
        return Graph(self.name, self.cuda, is_cuda=True)

    def record_stream(self, stream: Stream) -> None:
        self.cuda.log.append(f"{self.name} kept for {stream.name}")


class Cuda:
    """Stands for torch.cuda, and writes down in which order it is asked for what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.current = self.consumer = Stream("consumer", self.log)
        self.sides = 0
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        monkeypatch.setattr(torch.cuda, "Stream", self.new_stream)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)

    def new_stream(self, device: torch.device) -> Stream:
        self.sides += 1
        return Stream("side", self.log)

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.current = stream
        yield
        self.current = self.consumer

    def happened(self) -> list[str]:
        log = self.log[:]
        self.log.clear()
        return log


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


def test_the_streams_wait_for_each_other_and_keep_memory_in_this_order(fake_cuda: Cuda) -> None:
    transfer = CudaTransfer(torch.device("cuda:1"))
    prepared = transfer.prepare([Graph("batch", fake_cuda), "a.jpg"])
    assert fake_cuda.happened() == ["batch pinned", "batch to cuda:1 on side at leisure", "side 1 recorded"]
    batch, name = transfer.receive(prepared)
    assert fake_cuda.happened() == ["consumer 1 recorded", "consumer waits for side 1", "batch kept for consumer"]
    assert (batch.is_cuda, name) == (True, "a.jpg")
    transfer.prepare([Graph("next", fake_cuda)])
    assert fake_cuda.happened()[0] == "side waits for consumer 1"
    transfer.prepare([Graph("third", fake_cuda)])
    assert fake_cuda.happened()[0] == "third pinned"
    assert fake_cuda.sides == 1


def test_a_preparation_runs_on_the_stream_of_the_copies_and_what_it_makes_is_kept(fake_cuda: Cuda) -> None:
    def halve(batch: list[Graph]) -> tuple[Graph, int]:
        fake_cuda.log.append(f"{batch[0].name} halved on {fake_cuda.current.name}")
        return Graph("half", fake_cuda, is_cuda=True), 1

    transfer = CudaTransfer(torch.device("cuda:1"))
    prepared = transfer.prepare([Graph("whole", fake_cuda)], halve)
    assert fake_cuda.happened()[1:] == [
        "whole to cuda:1 on side at leisure",
        "whole halved on side",
        "side 1 recorded",
    ]
    assert transfer.receive(prepared)[1] == 1
    assert fake_cuda.happened()[1:] == ["consumer waits for side 1", "half kept for consumer"]


def test_what_a_preparation_leaves_on_the_cpu_goes_to_the_device_on_the_stream_of_the_consumer(fake_cuda: Cuda) -> None:
    transfer = CudaTransfer(torch.device("cuda:1"))
    prepared = transfer.prepare([Graph("batch", fake_cuda)], lambda batch: [Graph("other", fake_cuda)])
    fake_cuda.happened()
    assert transfer.receive(prepared)[0].is_cuda
    assert fake_cuda.happened()[2:] == ["other to cuda:1 on consumer"]


def test_what_the_source_made_on_the_device_is_waited_for_and_kept(fake_cuda: Cuda) -> None:
    transfer = CudaTransfer(torch.device("cuda:1"))
    transfer.prepare([Graph("made", fake_cuda, is_cuda=True)])
    assert fake_cuda.happened()[:2] == ["side waits for all of consumer", "made kept for side"]


def test_what_cannot_be_kept_goes_to_the_device_on_the_stream_of_the_consumer(fake_cuda: Cuda) -> None:
    transfer = CudaTransfer(torch.device("cuda:1"))
    prepared = transfer.prepare([Mover("cpu")])
    assert prepared.batch[0].device == "cpu"
    assert transfer.receive(prepared)[0].device == torch.device("cuda:1")


def test_an_error_in_a_preparation_leaves_the_stream_of_the_thread_as_it_was(fake_cuda: Cuda) -> None:
    def fail(batch: Any) -> None:
        raise ValueError("no batch like that")

    transfer = CudaTransfer(torch.device("cuda:1"))
    with pytest.raises(ValueError, match="no batch like that"):
        transfer.prepare([Graph("batch", fake_cuda)], fail)
    assert transfer.receive(transfer.prepare([Graph("next", fake_cuda)]))[0].name == "next"


@pytest.mark.parametrize(
    ("leaf", "recordable"),
    [
        (torch.zeros(2), True),
        (torch.zeros(2).expand(3, 2), True),
        (pack_sequence([torch.ones(3), torch.ones(2)]), True),
        (torch.eye(2).to_sparse(), False),
        (torch.nn.Parameter(torch.ones(2)), False),
        (Mover(), False),
    ],
)
def test_only_what_can_be_recorded_is_copied_beside_the_consumer(leaf: Any, recordable: bool) -> None:
    assert is_recordable(leaf) is recordable


def test_all_of_a_packed_sequence_is_recorded_but_its_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = []
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: self.dtype is torch.float32))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: recorded.append((self, stream)))
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    stream: Any = object()
    record(packed, stream)
    assert recorded == [(packed.data, stream)]
