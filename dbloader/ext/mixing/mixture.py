"""Mix several datasets into one, in proportion to weights."""

from __future__ import annotations

import copy
import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import accumulate, pairwise
from operator import index as as_index
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Subset
from typing_extensions import override

from dbloader._describe import short_repr
from dbloader._extensions import extension
from dbloader._options import check_choice, real_number, whole_number
from dbloader.datasets.base import CompositeDataset
from dbloader.datasets.fields import (
    check_fields,
    checked_fields,
    checked_target,
    has_image,
    image_and_label,
    names_of,
)
from dbloader.datasets.store import StoreDataset
from dbloader.datasets.targets import class_names
from dbloader.decoding.decoder import Decoder
from dbloader.decoding.open import decode_pil
from dbloader.errors import DBLoaderError, OptionError, RecordIndexError
from dbloader.ext.mixing.sampler import MixtureSampler, describe_weights
from dbloader.ext.mixing.shares import MixtureOrder, exact
from dbloader.records.columns import NO_LABEL
from dbloader.sampling.rng import seed_like
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dbloader.sampling.base import ResumableSampler
    from dbloader.sampling.rng import Array

_SOURCE = "source"  # the field with the name of a sample's source


def mix(
    sources: Any,
    *,
    length: int | Literal["longest", "shortest"] = "longest",
    by: Literal["class"] | None = None,
    fields: Iterable[str] | Mapping[str, str] | None = None,
) -> Mixture:
    """Return a dataset that mixes several datasets in proportion to weights, for `create_loader` (docs/mixing.md).

    The order is a function of the seed and the position in the training. Each source has exactly its share: with the
    weights 5 and 2, each block of 7 samples has 5 from the first source and 2 from the second. A source gives all
    of its samples, in random order, before it repeats one. Each epoch continues where the previous epoch ended.

    Args:
        sources: A dict from each source to its weight. A source is a place, an LMDBDataset or MongoDataset, a Subset of
            such a dataset, or a mixture without a schedule. The sources of an inner mixture share its weight. A weight
            is a number of at least 0, or a schedule of numbers: ``[(0, 5), (1_000_000, 1)]`` is 5 for the first million
            samples of the training, and then 1.
        length: Samples in an epoch, of all ranks together. With ``"longest"``, the first epoch has all samples of each
            source; with ``"shortest"``, all samples of at least one source. All epochs have this length. Later weights
            of a schedule do not change it.
        by: ``"class"`` makes all classes of a dataset equally frequent. ``sources`` is then a single source without a
            weight, and each of its classes becomes a source.
        fields: Names of the fields for all sources, as for LMDBDataset. The field ``"source"`` is the name of the
            sample's source: its place and query, or its class. With None, each dataset keeps its fields.

    Raises:
        OptionError: Sources disagree: only some have named classes, their samples have different fields, or their
            images have different shapes. Or a weight is out of range, all weights are 0, a source has no samples or no
            labels, or a mixture with a schedule is a source.
        TypeError: A source is of another type, or a weight is not a number.
        DBLoaderError: As from LMDBDataset and MongoDataset.
    """
    chosen = checked_fields(fields)
    if by is not None:
        check_choice("by", by, ("class",))
        classes = _by_class(sources, chosen)
        return Mixture(classes, [(0, [1] * len(classes))], length, chosen)
    if not isinstance(sources, Mapping) or not sources:
        raise TypeError(f"sources must be a dict from at least one source to its weight, got {short_repr(sources)}")
    schedule = _schedule(sources)
    parts = [_open(source, chosen) for source in sources]
    weights = [
        (start, [weight * share for weight, part in zip(some, parts, strict=True) for _, share in part])
        for start, some in schedule
    ]
    return Mixture([source for part in parts for source, _ in part], weights, length, chosen)


class Source(NamedTuple):
    """The samples of one source: a whole dataset, or the samples at some of its indices."""

    name: str
    dataset: StoreDataset
    indices: Array | None = None

    @property
    def length(self) -> int:
        """The number of samples."""
        return len(self.dataset) if self.indices is None else len(self.indices)

    @property
    def digest(self) -> str:
        """A digest of the samples and their order."""
        digest = self.dataset.content_digest
        return digest if self.indices is None else f"{digest}/{hashlib.sha256(self.indices.tobytes()).hexdigest()}"


class Mixture(CompositeDataset):
    """The dataset that `mix` returns.

    ``len`` is the number of samples in an epoch. An index below ``len`` is a position in the first epoch with seed 0.
    The index ``len + i`` is sample i of the concatenated sources, and ``sampler()`` draws only such indices. Any other
    sampler draws indices below ``len``, so all epochs have the same samples, in the right proportions.

    Attributes:
        sources: The sources. An inner mixture is replaced by its sources.
        datasets: The datasets of the sources. Their samples have the labels of the mixture.
        classes: The class names of all sources in the order of their labels; empty if the classes have no names.
        fields: The fields of a sample, as in LMDBDataset.
        order: Computes the order of the samples.
    """

    def __init__(self, sources: Sequence[Source], schedule: list[tuple[int, Any]], length: Any, fields: Any) -> None:
        for source in sources:
            if not source.length:
                raise OptionError(f"each source must have samples, got none in {source.name}")
        originals = {id(source.dataset): source.dataset for source in sources}
        numbers = {key: number for number, key in enumerate(originals)}
        self.datasets = [_with_fields(dataset, fields) for dataset in originals.values()]
        self.sources = _with_names(
            [source._replace(dataset=self.datasets[numbers[id(source.dataset)]]) for source in sources]
        )
        self._dataset_of = np.array([numbers[id(source.dataset)] for source in sources])
        self._is_part = np.array([source.indices is not None for source in sources])
        self._starts = np.array([0, *accumulate(source.length for source in sources)])
        self.fields = self._common_fields() if fields is None else fields
        self.target = self._common_target()
        self.classes = self._unite_classes()
        self._check_outputs()
        self.order = MixtureOrder([source.length for source in sources], schedule)
        if isinstance(length, str):
            check_choice("length", length, ("longest", "shortest"))
            length = (max if length == "longest" else min)(self.order.epochs())
        self.order.length = whole_number("length", length, 1)

    def _common_fields(self) -> Any:
        first = self.datasets[0]
        for dataset in self.datasets[1:]:
            shown = [one.fields and names_of(one.fields) for one in (first, dataset)]
            if shown[0] != shown[1]:
                texts = ["(image, label)" if one is None else short_repr([*one]) for one in shown]
                raise OptionError(
                    f"all sources must have the same fields, got {texts[0]} in {first.root} and {texts[1]} in "
                    f"{dataset.root}: pass fields= to mix"
                )
        return first.fields

    def _common_target(self) -> str:
        first = self.datasets[0]
        for dataset in self.datasets[1:]:
            if dataset.target != first.target:
                raise OptionError(
                    f"all sources must have the same target, got {first.target!r} in {first.root} and "
                    f"{dataset.target!r} in {dataset.root}: give datasets with target= as the sources"
                )
        return str(first.target)

    def _unite_classes(self) -> list[str]:
        """Return one list of all classes. Make each dataset's ``target_transform`` return positions in this list."""
        given = names_of(self.fields, self.target).values()
        if self.target != "label":
            for field in {"label", self.target}.intersection(given):
                names = [[*class_names(dataset.manifest, field)] for dataset in self.datasets]
                if other := next((at for at, some in enumerate(names) if some != names[0]), None):
                    raise OptionError(
                        f"the classes of {field!r} must be the same in all sources, got "
                        f"{short_repr(names[0])} in {self.datasets[0].root} and {short_repr(names[other])} in "
                        f"{self.datasets[other].root}: make the stores with the same classes, or leave the field out"
                    )
            return list(self.datasets[0].classes)
        if "label" not in given:
            return []
        named = [bool(dataset.classes) for dataset in self.datasets]
        if any(named) and not all(named):
            one, other = self.datasets[named.index(True)].root, self.datasets[named.index(False)].root
            raise OptionError(
                f"all sources or none must have names of classes, but {one} has names and {other} has none: "
                "leave the label out with fields=, or convert the images from folders with the names of classes"
            )
        labels: dict[str, int] = {}
        for dataset in self.datasets:
            own = [labels.setdefault(name, len(labels)) for name in dataset.classes]
            then = dataset.target_transform
            then = then.then if isinstance(then, UnitedLabels) else then
            dataset.target_transform = then if own == [*range(len(own))] else UnitedLabels(own, then)
        return [*labels]

    def _check_outputs(self) -> None:
        """Raise OptionError if the images of two datasets are known to differ in shape or type."""
        known: dict[Any, tuple[str | None, str]] = {}
        for dataset in self.datasets if has_image(self.fields) else ():
            functions = (dataset.decode, dataset.transform, dataset.transforms, type(dataset))
            if (key := tuple(map(id, functions))) not in known:
                known[key] = (_output_of(dataset), dataset.root)
        outputs = [(output, root) for output, root in known.values() if output]
        for output, root in outputs[1:]:
            if output != outputs[0][0]:
                raise OptionError(
                    f"the images of all sources must have one shape and type, got {outputs[0][0]} in {outputs[0][1]} "
                    f"and {output} in {root}"
                )

    @override
    def replaced(self, datasets: list[StoreDataset]) -> Self:
        other = copy.copy(self)
        other.datasets = datasets
        other._check_outputs()
        return other

    def __len__(self) -> int:
        return self.order.length

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    @override
    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return a batch of samples, for torch's DataLoader. Each dataset reads its samples in one transaction."""
        sources, groups = self.divide(indices)
        samples: list[Any] = [None] * len(indices)
        for number, places, own in groups:
            own = seed_like(indices, own, places)
            for place, sample in zip(places, self.datasets[number].__getitems__(own), strict=True):
                samples[place] = sample
        return self.name_sources(samples, sources)

    def name_sources(self, samples: list[Any], sources: Array) -> list[Any]:
        """Return samples with the names of their sources, if ``"source"`` is one of the fields."""
        for name, field in names_of(self.fields).items():
            if field == _SOURCE:
                named = zip(samples, sources.tolist(), strict=True)
                samples = [{**sample, name: self.sources[number].name} for sample, number in named]
        return samples

    def divide(self, indices: Sequence[int]) -> tuple[Array, list[tuple[int, list[int], Sequence[int]]]]:
        """Divide the samples at some indices among the datasets.

        Returns:
            The number of each sample's source: int64, shape (indices,). Then, for each needed dataset: its number, the
            positions of its samples in ``indices``, and the indices of these samples in the dataset.

        Raises:
            RecordIndexError: An index is out of range.
            TypeError: An index is not an int.
        """
        sources, own_indices = self._locate(indices)
        datasets = self._dataset_of[sources]
        order = np.argsort(datasets, kind="stable")
        numbers, begins = np.unique(datasets[order], return_index=True)
        places: list[int] = order.tolist()
        own: Sequence[int] = own_indices[order].tolist()
        bounds = pairwise([*begins.tolist(), len(places)])
        groups = [
            (number, places[begin:end], own[begin:end])
            for number, (begin, end) in zip(numbers.tolist(), bounds, strict=True)
        ]
        return sources, groups

    def _locate(self, indices: Sequence[int]) -> tuple[Array, Array]:
        """Return the number of each sample's source, and the sample's index in the dataset of this source."""
        values = np.array([as_index(index) for index in indices], np.int64)
        values[values < 0] += len(self)
        if values.min(initial=0) < 0 or values.max(initial=0) >= len(self) + self._starts[-1]:
            raise RecordIndexError(
                f"one of the indices {short_repr(values)} has no sample; an epoch has {len(self)} samples"
            )
        in_epoch = values < len(self)
        values -= len(self)
        if in_epoch.any():
            values[in_epoch] = self.order.walk(0)(values[in_epoch] + len(self))
        sources = np.searchsorted(self._starts, values, "right") - 1
        values -= self._starts[sources]
        for number in np.unique(sources[self._is_part[sources]]).tolist():
            own: Any = self.sources[number].indices
            values[sources == number] = own[values[sources == number]]
        return sources, values

    @override
    def origin(self, index: int) -> tuple[StoreDataset, int, str]:
        [source], [own] = self._locate([index])
        return self.datasets[self._dataset_of[source]], int(own), self.sources[source].name

    def count_sources(self, sources: Array, waited: Array) -> dict[str, tuple[int, float]]:
        """Return {name of a source: (number of its samples in a batch, seconds of waiting for them)}.

        ``waited`` has the seconds of each dataset, which are divided among its sources in proportion to their samples.
        """
        numbers, counts = np.unique(sources, return_counts=True)
        datasets = self._dataset_of[numbers]
        seconds = waited[datasets] * counts / np.bincount(datasets, counts)[datasets]
        found = zip(numbers.tolist(), counts.tolist(), seconds.tolist(), strict=True)
        return {self.sources[number].name: (count, waited_s) for number, count, waited_s in found}

    @override
    def fetcher(self, parts: Sequence[Any], collate_fn: Callable[[list[Any]], Any] | None) -> Any:
        # Import the class only now, because its module imports much that a mixture alone does not need.
        return extension("MixtureBatchFetcher")(self, parts, collate_fn)

    @override
    def sampler(
        self, num_replicas: int | None = None, rank: int | None = None, *, seed: int = 0, drop_last: bool = False
    ) -> MixtureSampler:
        """Return a sampler that draws in the mixture's order; arguments and errors are as in ShuffleSampler.

        `create_loader` calls this method itself. For torch's DataLoader, pass the sampler as ``sampler``, or pass
        ``SeededBatchSampler(mixture.sampler(), batch_size)`` as ``batch_sampler``.
        """
        names = [source.name for source in self.sources]
        digests = [source.digest for source in self.sources]
        return MixtureSampler(self.order, names, digests, num_replicas, rank, seed=seed, drop_last=drop_last)

    def passes(self, state: Mapping[str, Any]) -> dict[str, float]:
        """Return the number of passes over each source, such as 1.5, up to a state of the sampler."""
        draws = self.order.walk(state["seed"]).before(state["epoch"] * len(self) + state["position"])
        pairs = zip(self.sources, draws.tolist(), strict=True)
        return {source.name: count / source.length for source, count in pairs}

    def expect_order(self, sampler: ResumableSampler, since: Mapping[str, Any], *, margin: int, check: bool) -> None:
        """Pass the order of a new iteration to the caches of the datasets; arguments are as in RecordDataset."""
        for number, dataset in enumerate(self.datasets):

            def order(seed: int, epoch: int, number: int = number) -> Callable[[Array], Array]:
                whole = sampler.order(seed, epoch)
                return lambda positions: self._inside(number, whole(positions))

            part: Any = SimpleNamespace(positions=sampler.positions, length=sampler.length, order=order)
            dataset.expect_order(part, since, margin=margin, check=check)

    def _inside(self, number: int, indices: Array) -> Array:
        """Return, for each sample, its index in dataset ``number``, or -1 if the sample is in another dataset."""
        sources, own = self._locate(indices.tolist())
        return np.where(self._dataset_of[sources] == number, own, -1)

    def close(self) -> None:
        """Close the stores. The next read opens them again."""
        for dataset in self.datasets:
            dataset.close()

    def __repr__(self) -> str:
        """Return a text in the form of torchvision's datasets."""
        lines = ["Dataset Mixture", f"Number of datapoints: {len(self)}", f"Weights: {describe_weights(self.order)}"]
        lines += [f"Source: {source.name} ({source.length:,} samples)" for source in self.sources[:20]]
        return "\n    ".join(lines)


class UnitedLabels:
    """A ``target_transform`` that turns a store's label into the mixture's label.

    The dataset's own ``target_transform``, if there is one, is then called with the mixture's label.
    """

    def __init__(self, labels: list[int], then: Callable[[Any], Any] | None) -> None:
        self.labels = labels
        self.then = then

    def __call__(self, label: int) -> Any:
        """Return the mixture's label, transformed.

        Raises:
            OptionError: The label has no class name.
        """
        if not 0 <= label < len(self.labels):
            raise OptionError(
                f"label {label} has no name among {len(self.labels)} classes, so the mixture has no label for it"
            )
        return self.labels[label] if self.then is None else self.then(self.labels[label])


def _open(given: Any, fields: Any) -> list[tuple[Source, Fraction]]:
    """Return the source for a store or dataset, or each source of an inner mixture with its fraction of the weight."""
    if isinstance(given, Mixture):
        if len(given.order.starts) > 1:
            raise OptionError("a mixture with a schedule cannot be a source: pass the sources of that mixture instead")
        shares = given.order.shares[0]
        return [(source, Fraction(share, sum(shares))) for source, share in zip(given.sources, shares, strict=True)]
    indices: Array | None = None
    while type(given) is Subset:
        own = np.asarray(given.indices, np.int64)
        indices, given = own if indices is None else own[indices], given.dataset
    if not isinstance(given, (StoreDataset, str, bytes, os.PathLike)):
        what = "a place, an LMDBDataset or MongoDataset, a Subset of such a dataset, or a mixture"
        found = type(given).__name__ if indices is None else f"a Subset of {type(given).__name__}"
        raise TypeError(f"a source must be {what}, got {found}")
    if not isinstance(given, StoreDataset):
        given = StoreDataset(open_store(os.fsdecode(given)), fields=_without_source(fields))
    return [(Source(given.root + ("" if given.where is None else f" ({given.where})"), given, indices), Fraction(1))]


def _by_class(given: Any, fields: Any) -> list[Source]:
    if isinstance(given, Mixture):
        raise OptionError("by='class' balances the classes of one store, got a mixture")
    [((name, dataset, indices), _)] = _open(given, fields)
    labels = dataset.targets if indices is None else dataset.targets[indices]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise OptionError(f"by='class' needs one class for each record, but {dataset.target!r} of {name} is no class")
    if NO_LABEL in labels:
        raise OptionError(f"by='class' needs a label in each record, but some records of {name} have none")
    order = np.argsort(labels, kind="stable")
    found, begins = np.unique(labels[order], return_index=True)
    order = (order if indices is None else indices[order]).astype(np.uint32 if len(dataset) < 2**32 else np.int64)
    names = dict(enumerate(dataset.classes))
    parts = zip(found.tolist(), np.split(order, begins[1:]), strict=True)
    return [Source(names.get(label, str(label)), dataset, part) for label, part in parts]


def _with_names(sources: list[Source]) -> list[Source]:
    """Return the sources with different names. Add a number, such as " #2", to a name that several sources have."""
    counts, seen, named = Counter(source.name for source in sources), Counter[str](), []
    for source in sources:
        seen[source.name] += 1
        number = f" #{seen[source.name]}" if counts[source.name] > 1 else ""
        named.append(source._replace(name=source.name + number))
    return named


def _without_source(fields: Any) -> Any:
    if isinstance(fields, dict):
        return {name: field for name, field in fields.items() if field != _SOURCE}
    return fields and tuple(name for name in fields if name != _SOURCE)


def _with_fields(dataset: StoreDataset, fields: Any) -> StoreDataset:
    dataset = copy.copy(dataset)
    if fields is not None:
        dataset.fields = _without_source(fields)
        kept = dataset.target if dataset.target in names_of(dataset.fields).values() else None
        dataset.target = checked_target(kept, dataset.fields, dataset.manifest)
        check_fields(dataset, dataset.manifest)
    return dataset


def _schedule(sources: Mapping[Any, Any]) -> list[tuple[int, list[Fraction]]]:
    """Return (position, weights) for each change of weights. The weights are for the samples from this position on.

    ``sources`` maps each source to its weight or schedule.
    """
    schedules = [weight if isinstance(weight, (list, tuple)) else [(0, weight)] for weight in sources.values()]
    for name, schedule in zip(sources, schedules, strict=True):
        what = f"the weight of {short_repr(name)}"
        if not all(isinstance(entry, (list, tuple)) and len(entry) == 2 for entry in schedule):
            raise TypeError(f"{what} must be a number or a schedule such as [(0, 5), (1_000_000, 1)], got {schedule}")
        starts = [whole_number(f"a position in {what}", start, 0) for start, _ in schedule]
        if starts[:1] != [0] or starts != sorted({*starts}):
            raise OptionError(f"the positions in {what} must begin with 0 and ascend, got {starts}")
        for _, weight in schedule:
            real_number(what, weight)
    changes = sorted({start for schedule in schedules for start, _ in schedule})
    weights = [(at, [exact([w for start, w in one if start <= at][-1]) for one in schedules]) for at in changes]
    for position, now in weights:
        if not any(now):
            raise OptionError(f"at least one weight must be above 0, got only 0 from position {position} on")
    return weights


def _output_of(dataset: StoreDataset) -> str | None:
    """Return the type and shape of a dataset's images as text; None if they may vary or are not known yet."""
    if dataset.transform is dataset.transforms is None and not dataset.makes_own_samples:
        if isinstance(dataset.decode, Decoder):
            return dataset.decode.size and f"torch.uint8 of shape {(3, *dataset.decode.size)}"
        if dataset.decode is decode_pil:
            return None  # `create_loader` may add a Decoder, which sets the shape
    try:
        with torch.random.fork_rng(devices=[]):
            sample = dataset[0]
    except DBLoaderError:
        return None  # the training raises this error, or skips the sample
    image = sample[image_and_label(dataset)["image"]] if isinstance(sample, dict) else sample[0]
    if isinstance(image, Image.Image):
        return None
    return f"{image.dtype} of shape {tuple(image.shape)}" if hasattr(image, "shape") else type(image).__name__
