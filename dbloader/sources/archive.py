"""What tar and zip files have in common: several may be one source, and folders in them may be classes."""

from __future__ import annotations

import os
import posixpath
import shlex
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from dbloader.errors import SourceError
from dbloader.sources.base import Entry, Source, Tally, full_path, readable

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from dbloader.sources.base import Problem


class ArchiveSource(Source):
    """The images in several files, one after the other.

    ``labels`` has the label of each text in a ``.cls``, or, if ``shared`` is not None, of each folder below the
    ``shared`` first ones.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        paths: Sequence[Path],
        classes: tuple[str, ...],
        labels: dict[str, int],
        shared: int | None = None,
    ) -> None:
        super().__init__(Path(os.sep), classes, place=full_path(place))
        self._paths, self._labels, self._shared = paths, labels, shared

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        tally, unlabelled, total = Tally(), 0, 0
        for path in self._paths:
            for item in self._found(path, tally):
                if isinstance(item, Entry):
                    total += 1
                    unlabelled += item.label is None
                yield item
        if unlabelled:
            remedy = self._remedy() if unlabelled == total and len(self._paths) > 1 else ""
            tally.warnings.append(f"{unlabelled:,} of {total:,} images have no label{remedy}")
        return tally

    def _remedy(self) -> str:
        """Return what gives images labels if each of several plain tars is a class."""
        folder = self._paths[0].parent
        if any(path.suffix != ".tar" or path.parent != folder for path in self._paths):
            return ""
        packed = shlex.quote(f"{full_path(folder)}.tar")
        command = f"cd {shlex.quote(full_path(folder))} && tar -cf {packed} *.tar"
        return f": if each tar is a class, make one tar of them and convert that: {command}"

    @abstractmethod
    def _found(self, path: Path, tally: Tally) -> Iterator[Entry | Problem]:
        """Yield the images in one file."""

    def _label(self, path: Path, image: str, text: str = "") -> int | None:
        """Return the label of an image, which its folder or a text gives; None without one."""
        if self._shared is not None:
            text = ([*posixpath.dirname(image).split("/"), ""])[self._shared :][0]
        if text and text not in self._labels:
            raise SourceError(f"{readable(path)}: was changed since it was first read")
        return self._labels.get(text)


def number_folders(folders: set[str], where: str) -> tuple[tuple[str, ...], dict[str, int], int]:
    """Return the classes, sorted, and their labels, if folders are classes; and how many folders all images share.

    The class of an image is the first folder below those that all share.
    """
    parts = [folder.split("/") if folder else [] for folder in folders]
    shared = 0
    while all(len(names) > shared for names in parts) and len({names[shared] for names in parts}) == 1:
        shared += 1
    classes = sorted({names[shared] for names in parts if len(names) > shared})
    if len({*map(readable, classes)}) < len(classes):
        raise SourceError(f"{where}: two of its folders have the same name, written as UTF-8; rename one")
    return tuple(map(readable, classes)), {name: label for label, name in enumerate(classes)}, shared
