"""Find out whether a listing is of annotations, and of which kind; docs/annotations.md describes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dbloader.sources.base import checked_root
from dbloader.sources.coco import read_coco
from dbloader.sources.voc import read_voc
from dbloader.sources.yolo import read_yolo

if TYPE_CHECKING:
    import os

    from dbloader.sources.base import Source


def read_annotations(listing: str | os.PathLike[str], root: str | os.PathLike[str]) -> Source | None:
    """Return the source of the images in a folder that annotations name; None if the listing is another file."""
    path, kind = Path(listing), Path(listing).suffix.lower()
    if kind == ".json" and path.is_file():
        return read_coco(path, checked_root(root))
    if kind in (".yaml", ".yml") or path.name == "classes.txt":
        return read_yolo(path, checked_root(root))
    if path.is_dir():
        return read_voc(path, checked_root(root))
    if kind == ".txt":  # ImageSets/Main/train.txt, next to Annotations/
        return read_voc(path.absolute().parents[2] / "Annotations", checked_root(root), path)
    return None
