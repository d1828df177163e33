"""dbloader: turn a folder of images into one fast, verified database and feed the GPU from it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dbloader.version import VERSION

if TYPE_CHECKING:
    from dbloader.ahead import BackgroundGenerator, background
    from dbloader.benchmarking import Benchmark, benchmark
    from dbloader.conversion import Progress, Report, convert
    from dbloader.copying import copy_store
    from dbloader.datasets import LMDBDataset
    from dbloader.datasets.mongo import MongoDataset
    from dbloader.decoding import DecodeTensor, RandomResizedCrop, ResizeCenterCrop, decode_pil
    from dbloader.errors import DBLoaderError
    from dbloader.headspace import Headspace
    from dbloader.keys import SampleKeys
    from dbloader.loading import create_loader
    from dbloader.manifest import Manifest
    from dbloader.prefetch import PrefetchLoader
    from dbloader.preparation import CutMix, Mixup, Normalize, Preparation, RandomErasing
    from dbloader.recipes import DataLoaderX
    from dbloader.records import Record
    from dbloader.sampling import (
        BlockShuffleSampler,
        ClassBalancedSampler,
        KeyedBatchSampler,
        OrderedSampler,
        ShuffleSampler,
        WeightedSampler,
    )
    from dbloader.stats import Stats
    from dbloader.stores import create_store, open_store
    from dbloader.threads import ThreadLoader
    from dbloader.warming import warm
    from dbloader.writing import write_store

__version__ = VERSION

# Where each name is; imported when it is first used, because torch takes over a second and most uses of the command
# line need none of it.
_MODULES = {
    "BackgroundGenerator": "ahead",
    "Benchmark": "benchmarking",
    "BlockShuffleSampler": "sampling",
    "ClassBalancedSampler": "sampling",
    "CutMix": "preparation",
    "DBLoaderError": "errors",
    "DataLoaderX": "recipes",
    "DecodeTensor": "decoding",
    "Headspace": "headspace",
    "KeyedBatchSampler": "sampling",
    "LMDBDataset": "datasets",
    "Manifest": "manifest",
    "Mixup": "preparation",
    "MongoDataset": "datasets.mongo",
    "Normalize": "preparation",
    "OrderedSampler": "sampling",
    "PrefetchLoader": "prefetch",
    "Preparation": "preparation",
    "Progress": "conversion",
    "RandomErasing": "preparation",
    "RandomResizedCrop": "decoding",
    "Record": "records",
    "Report": "conversion",
    "ResizeCenterCrop": "decoding",
    "SampleKeys": "keys",
    "ShuffleSampler": "sampling",
    "Stats": "stats",
    "ThreadLoader": "threads",
    "WeightedSampler": "sampling",
    "background": "ahead",
    "benchmark": "benchmarking",
    "convert": "conversion",
    "copy_store": "copying",
    "create_loader": "loading",
    "create_store": "stores",
    "decode_pil": "decoding",
    "open_store": "stores",
    "warm": "warming",
    "write_store": "writing",
}

__all__ = [
    "BackgroundGenerator",
    "Benchmark",
    "BlockShuffleSampler",
    "ClassBalancedSampler",
    "CutMix",
    "DBLoaderError",
    "DataLoaderX",
    "DecodeTensor",
    "Headspace",
    "KeyedBatchSampler",
    "LMDBDataset",
    "Manifest",
    "Mixup",
    "MongoDataset",
    "Normalize",
    "OrderedSampler",
    "PrefetchLoader",
    "Preparation",
    "Progress",
    "RandomErasing",
    "RandomResizedCrop",
    "Record",
    "Report",
    "ResizeCenterCrop",
    "SampleKeys",
    "ShuffleSampler",
    "Stats",
    "ThreadLoader",
    "WeightedSampler",
    "__version__",
    "background",
    "benchmark",
    "convert",
    "copy_store",
    "create_loader",
    "create_store",
    "decode_pil",
    "open_store",
    "warm",
    "write_store",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dbloader' has no attribute {name!r}")
    try:
        module = import_module(f"dbloader.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        message = f"dbloader.{name} needs torch, which is not installed here: pip install torch"
        raise ImportError(message, name="torch") from None
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
