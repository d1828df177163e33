"""Clips of videos whose frames are the records of a store."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from torch.utils.data import Dataset, default_collate
from typing_extensions import override

from dbloader._describe import short_repr
from dbloader._options import whole_number
from dbloader.datasets.fields import image_and_label
from dbloader.datasets.store import StoreDataset
from dbloader.errors import OptionError, RecordIndexError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class ClipDataset(Dataset[Any]):
    """Clips of consecutive frames: (frames, label), where frames have the shape (frames, 3, height, width).

    A store has one record for each frame of all videos, as ``convert`` makes of a folder for each video. Each clip is
    one sample, so any sampler shuffles clips, and ``create_loader`` shares, resumes and prepares them as it does
    images. A Decoder gets the same random numbers for all frames of a clip, so that it crops and mirrors them alike.

    The frames of a video are in the order of their records: that of their names, if a folder was converted, so numbers
    in the names need leading zeros.

    Args:
        dataset: An LMDBDataset or MongoDataset. Its images must become tensors: by a Decoder as its ``decode`` or as
            ``transform=`` of ``create_loader``. With ``fields``, a sample is a dict in which every field has an axis of
            frames first, also ``label``.
        frames: Frames of a clip.
        stride: Distance between two of them: 2 takes every other frame.
        step: Distance between the first frames of two clips of a video; ``frames * stride`` if None, so that no frame
            is in two clips.
        groups: The video of each record, shape (len(dataset),): numbers or texts. None takes the folder in which the
            record's file was.
        transform: Applied to the frames of a clip, a tensor, such as a transform of ``torchvision.transforms.v2``.

    Attributes:
        first: Index in ``dataset`` of the first frame of each clip: int64, shape (clips,).
        too_short: How many videos have too few frames for a clip; they are left out.

    Raises:
        OptionError: A number is below 1, ``groups`` has another shape, the dataset has transforms of its own, which
            would change each frame differently, or no video has enough frames. From reading: the frames of a clip
            cannot be stacked, or have different labels; choose ``fields`` to get all of these.
        TypeError: ``dataset`` has another type, ``groups`` have values that are not numbers or texts, or ``transform``
            is not callable.
    """

    def __init__(
        self,
        dataset: StoreDataset,
        frames: int = 8,
        stride: int = 1,
        step: int | None = None,
        *,
        groups: Sequence[Any] | np.ndarray[Any, Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        if not isinstance(dataset, StoreDataset):
            raise TypeError(f"dataset must be an LMDBDataset or MongoDataset, got {short_repr(dataset)}")
        if dataset.transform is not None or dataset.transforms is not None:
            raise OptionError(
                "dataset has a transform, which would change each frame of a clip differently: pass a Decoder as its "
                "decode=, or transform= here, which gets all frames of a clip"
            )
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be a callable or None, got {short_repr(transform)}")
        self.dataset = dataset
        self.frames = whole_number("frames", frames, 1)
        self.stride = whole_number("stride", stride, 1)
        self.step = self.frames * self.stride if step is None else whole_number("step", step, 1)
        self.transform = transform
        videos = _folders(dataset) if groups is None else np.asarray(groups)
        if videos.shape != (len(dataset),):
            raise OptionError(f"groups must have the shape ({len(dataset)},), one for each record, got {videos.shape}")
        try:
            _, video, lengths = np.unique(videos, return_inverse=True, return_counts=True)
        except TypeError as error:  # they have no order
            raise TypeError(f"groups must be all numbers or all texts, got {short_repr(groups)}") from error
        self._order = np.argsort(video, kind="stable")  # the records of each video, one video after another
        self._starts = _starts(lengths, (self.frames - 1) * self.stride + 1, self.step)
        self.first = self._order[self._starts]
        self.too_short = int((lengths <= (self.frames - 1) * self.stride).sum())
        if not len(self.first):
            raise OptionError(
                f"no video has {(self.frames - 1) * self.stride + 1} frames, which a clip of frames={self.frames} and "
                f"stride={self.stride} covers: the longest of {len(lengths)} has {lengths.max(initial=0)}"
            )

    def __len__(self) -> int:
        return len(self.first)

    def frames_of(self, index: int) -> np.ndarray[Any, Any]:
        """Return the indices in ``dataset`` of the frames of a clip: int64, shape (frames,)."""
        if not -len(self) <= index < len(self):
            raise RecordIndexError(f"no clip {index} in {self.dataset.root}, which has {len(self)}")
        frames: np.ndarray[Any, Any] = self._order[self._starts[index] + np.arange(self.frames) * self.stride]
        return frames

    @override
    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return clips, whose records are read in one transaction or round trip; torch's DataLoader calls this."""
        rows = self.dataset._random_numbers(indices)  # one for all frames of a clip
        records = iter(self.dataset.records(np.concatenate([self.frames_of(index) for index in indices]).tolist()))
        clips = []
        for at, index in enumerate(indices):
            row = None if rows is None else rows[at]
            clips.append(self._clip(index, [self.dataset._sample(next(records), row) for _ in range(self.frames)]))
        return clips

    def _clip(self, index: int, samples: list[Any]) -> Any:
        if isinstance(samples[0], dict):
            clip = self._stack(index, samples)
            image = image_and_label(self.dataset)["image"]
            return {**clip, image: self._transformed(clip[image])} if image in clip else clip
        images, labels = zip(*samples, strict=True)
        if any(label != labels[0] for label in labels):
            raise OptionError(
                f"the frames of clip {index} of {self.dataset.root} have different labels, {short_repr([*labels])}: "
                "choose fields=('image', 'label') to get one for each frame, or groups= that keep them apart"
            )
        return self._transformed(self._stack(index, [*images])), labels[0]

    def _stack(self, index: int, frames: list[Any]) -> Any:
        try:
            return default_collate(frames)
        except (TypeError, ValueError, RuntimeError) as error:
            raise OptionError(
                f"the frames of clip {index} of {self.dataset.root} cannot be stacked ({error}): pass a Decoder with a "
                "size, such as RandomResizedCrop(224), as decode= of the dataset or transform= of create_loader, and "
                "leave out fields that frames lack or whose lengths differ"
            ) from error

    def _transformed(self, frames: Any) -> Any:
        return frames if self.transform is None else self.transform(frames)

    def with_dataset(self, dataset: StoreDataset) -> Self:
        """Return the same clips of another dataset of the same records."""
        clips = copy.copy(self)
        clips.dataset = dataset
        return clips

    def __repr__(self) -> str:
        options = f"frames={self.frames}, stride={self.stride}, step={self.step}"
        left_out = f", without {self.too_short} videos that are too short" if self.too_short else ""
        return f"{type(self).__name__}({self.dataset!r}, {options}): {len(self)} clips{left_out}"


def _folders(dataset: StoreDataset) -> np.ndarray[Any, Any]:
    """Return a number for the folder of each record's name: int64, shape (len(dataset),)."""
    names = dataset.names
    data, ends = names.data.tobytes(), names.offsets.tolist()
    numbers: dict[bytes, int] = {}
    folders = (data[begin : data.rfind(b"/", begin, end) + 1] for begin, end in pairwise(ends))
    return np.array([numbers.setdefault(folder, len(numbers)) for folder in folders], np.int64)


def _starts(lengths: np.ndarray[Any, Any], span: int, step: int) -> np.ndarray[Any, Any]:
    """Return where clips that cover ``span`` frames begin, of videos of some lengths that follow one another."""
    counts = np.maximum(0, (lengths - span) // step + 1)
    ends = np.cumsum(counts)
    within = np.arange(counts.sum()) - np.repeat(ends - counts, counts)
    starts: np.ndarray[Any, Any] = np.repeat(np.cumsum(lengths) - lengths, counts) + within * step
    return starts
