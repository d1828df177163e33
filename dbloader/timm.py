"""Run one of timm's scripts on stores: ``python -m dbloader.timm train.py --data-dir 'stores/{split}.lmdb' ...``.

The script stays as it is. While it runs, ``timm.data.create_dataset`` returns an LMDBDataset or a MongoDataset where
the script names no other kind of dataset (``--dataset``). The script's split, such as ``train`` or ``validation``,
replaces ``{split}`` in the place. The transforms, the sampler and the loader are timm's.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

from dbloader.datasets.lmdb import LMDBDataset
from dbloader.datasets.mongo import MongoDataset
from dbloader.errors import OptionError

# Options of timm's create_dataset that choose something which a store has decided.
_OF_FOLDERS = ("class_map", "load_bytes", "download", "input_key", "target_key", "additional_features")


def open_store(root: str | None = None, split: str = "validation", **options: Any) -> LMDBDataset | MongoDataset:
    """Return the dataset of a store for a call of timm's ``create_dataset``.

    Args:
        root: Place of the store, in which ``{split}`` stands for the split.
        split: Which part of the data.
        options: The others of timm's. Those that choose how a folder is read must not be set; those that only matter
            for streams, such as ``batch_size``, change nothing here or for timm's folders.

    Raises:
        OptionError: No place is given, or an option is set that is only for folders.
    """
    if not root:
        raise OptionError("--data-dir must be the place of a store, such as 'stores/{split}.lmdb', got none")
    given = {name: options[name] for name in _OF_FOLDERS if options.get(name)}
    if options.get("input_img_mode", "RGB") not in (None, "RGB"):
        given["input_img_mode"] = options["input_img_mode"]
    if given:
        name, value = next(iter(given.items()))
        raise OptionError(f"{name}={value!r} is for folders of images, not for the store {root!r}: leave it out")
    place = root.replace("{split}", split)
    return MongoDataset(place) if place.startswith(("mongodb://", "mongodb+srv://")) else LMDBDataset(place)


def main(arguments: list[str]) -> None:
    """Run a script of timm's with its arguments, as ``python`` does."""
    if not arguments or arguments[0].startswith("-"):
        raise SystemExit("usage: python -m dbloader.timm SCRIPT [ARGUMENT ...], such as timm's train.py or validate.py")
    if not Path(arguments[0]).is_file():
        raise SystemExit(f"there is no script {arguments[0]!r}; timm's are in its repository, not in its package")
    try:
        import timm.data
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: pip install timm") from error

    of_timm = timm.data.create_dataset

    def create_dataset(name: str = "", *args: Any, **options: Any) -> Any:
        return of_timm(name, *args, **options) if name else open_store(*args, **options)

    timm.data.create_dataset = create_dataset
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)  # as for any script: modules beside it can be imported
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
