"""Nested batches move to a device and keep their types."""

import dataclasses
import types
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from dbloader.device.transfer import resolve_device, to_device
from dbloader.errors import LoaderError, OptionError
from dbloader.loading.prefetch import PrefetchLoader

# Every machine has the meta device, and tensors are on it only if something has moved them there.
META = torch.device("meta")

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this test is for machines without CUDA")


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
    """A dictionary whose keys are attributes, so reading the attribute `to` raises KeyError."""

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
    """Moves its tensors in place and returns itself, like a BatchEncoding."""

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
def test_tensors_move_and_containers_keep_type_and_values(make: Any) -> None:
    batch = make(tensor())
    moved = to_device(batch, META)
    assert type(moved) is type(batch)
    assert repr(moved) == repr(make(tensor().to(META)))  # == of two tensors has no single truth value
    assert repr(batch) == repr(make(tensor()))


@pytest.mark.parametrize("leaf", [None, "a", b"a", 1, 2.5, True, np.zeros(2), {1, 2}, torch.float32, Mover, Defaulted])
def test_values_that_cannot_move_stay_the_same_object(leaf: Any) -> None:
    assert to_device(leaf, META) is leaf
    assert to_device([leaf, tensor()], META)[0] is leaf


def test_batch_without_moved_tensors_stays_the_same_object() -> None:
    batch = [tensor(), (tensor(), {"a": [tensor()]}), Frozen(tensor(), "b"), torch.Size([2])]
    assert to_device(batch, "cpu") is batch
    names = ["a.jpg", "b.jpg"]
    assert to_device((tensor(), names), META)[1] is names


def test_container_keeps_its_other_attributes() -> None:
    tags = Tags([tensor()])
    tags.tag = "kept"
    assert to_device(tags, META).tag == "kept"
    groups: Any = defaultdict(list, image=tensor())
    assert to_device(groups, META)["other"] == []
    counts: Any = Counter({"a": 1})
    counts["a"] = tensor()
    assert to_device(counts, META)["a"].device == META
    assert to_device(Checked(tensor()), META).made == 1


def test_object_with_a_to_method_moves_itself() -> None:
    assert to_device([Mover()], META)[0].device == META
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = to_device({"packed": packed}, META)["packed"]
    assert type(moved) is PackedSequence
    assert (moved.data.device, moved.batch_sizes.device.type) == (META, "cpu")


def test_user_dict_is_copied_with_moved_values() -> None:
    tokens = Tokens(ids=tensor())
    moved = to_device(tokens, META)
    assert (type(moved), moved["ids"].device) == (Tokens, META)
    assert tokens["ids"].device.type == "cpu"


def test_auto_chooses_cuda_if_present_and_else_the_cpu() -> None:
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@without_cuda
@pytest.mark.parametrize("device", ["cuda", "cuda:3", 0, torch.device("cuda")])
def test_missing_cuda_is_an_error_with_a_remedy(device: Any) -> None:
    with pytest.raises(OptionError, match=r'torch finds 0 CUDA devices here, got device=.*: use device="auto"'):
        PrefetchLoader([], device=device)


@pytest.mark.parametrize("device", ["gpu", "", "cuda:x", -1])
def test_unknown_device_is_an_error_with_a_remedy(device: Any) -> None:
    with pytest.raises(OptionError, match=f'device must be a device of torch, got {device!r}: use device="auto"'):
        PrefetchLoader([], device=device)


def test_loader_moves_batches() -> None:
    batches = [(torch.zeros(2), ["a", "b"]), (torch.ones(2), ["c", "d"])]
    loader = PrefetchLoader(batches, device="meta")
    assert loader.device == META
    assert [(images.device, names) for images, names in loader] == [(META, ["a", "b"]), (META, ["c", "d"])]


def test_error_while_moving_a_batch_is_raised_at_that_batch() -> None:
    class Refusing:
        def to(self, device: Any) -> None:
            raise ValueError(f"not to {device}")

    iterator = iter(PrefetchLoader[Any]([1, Refusing(), 3], device="cpu"))
    assert next(iterator) == 1
    with pytest.raises(ValueError, match="not to cpu"):
        next(iterator)
    with pytest.raises(LoaderError, match="an error ended this iterator"):
        next(iterator)
