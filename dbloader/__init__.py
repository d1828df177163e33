"""dbloader: turn a folder of images into one fast, verified database and feed the GPU from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader._lazy import lazy_exports
from dbloader._version import VERSION

if TYPE_CHECKING:
    from dbloader.conversion.convert import convert
    from dbloader.conversion.copy_store import copy_store
    from dbloader.conversion.report import Progress, Report
    from dbloader.conversion.transcode import ImageFormat
    from dbloader.conversion.write_store import write_store
    from dbloader.datasets.lmdb import LMDBDataset
    from dbloader.datasets.mongo import MongoDataset
    from dbloader.decoding.center_crop import ResizeCenterCrop
    from dbloader.decoding.full import DecodeTensor
    from dbloader.decoding.pillow import decode_pil
    from dbloader.decoding.random_crop import RandomResizedCrop
    from dbloader.device.compose import Preparation
    from dbloader.device.erasing import RandomErasing
    from dbloader.device.normalize import Normalize
    from dbloader.errors import DBLoaderError
    from dbloader.loading.compat import DataLoaderX
    from dbloader.loading.create import create_loader
    from dbloader.loading.generator import BackgroundGenerator, background
    from dbloader.loading.prefetch import PrefetchLoader
    from dbloader.loading.stats import Stats
    from dbloader.loading.threads import ThreadLoader
    from dbloader.records.manifest import Manifest
    from dbloader.records.record import Record
    from dbloader.sampling.batches import SeededBatchSampler
    from dbloader.sampling.blocks import BlockShuffleSampler
    from dbloader.sampling.rng import SampleRNG
    from dbloader.sampling.shuffle import OrderedSampler, ShuffleSampler
    from dbloader.sampling.weighted import ClassBalancedSampler, WeightedSampler
    from dbloader.stores.lmdb.page_cache import warm
    from dbloader.stores.open import create_store, open_store

__version__ = VERSION

_MODULES = {
    "BackgroundGenerator": "loading.generator",
    "BlockShuffleSampler": "sampling.blocks",
    "ClassBalancedSampler": "sampling.weighted",
    "DBLoaderError": "errors",
    "DataLoaderX": "loading.compat",
    "DecodeTensor": "decoding.full",
    "ImageFormat": "conversion.transcode",
    "LMDBDataset": "datasets.lmdb",
    "Manifest": "records.manifest",
    "MongoDataset": "datasets.mongo",
    "Normalize": "device.normalize",
    "OrderedSampler": "sampling.shuffle",
    "PrefetchLoader": "loading.prefetch",
    "Preparation": "device.compose",
    "Progress": "conversion.report",
    "RandomErasing": "device.erasing",
    "RandomResizedCrop": "decoding.random_crop",
    "Record": "records.record",
    "Report": "conversion.report",
    "ResizeCenterCrop": "decoding.center_crop",
    "SampleRNG": "sampling.rng",
    "SeededBatchSampler": "sampling.batches",
    "ShuffleSampler": "sampling.shuffle",
    "Stats": "loading.stats",
    "ThreadLoader": "loading.threads",
    "WeightedSampler": "sampling.weighted",
    "background": "loading.generator",
    "convert": "conversion.convert",
    "copy_store": "conversion.copy_store",
    "create_loader": "loading.create",
    "create_store": "stores.open",
    "decode_pil": "decoding.pillow",
    "open_store": "stores.open",
    "warm": "stores.lmdb.page_cache",
    "write_store": "conversion.write_store",
}

__getattr__, __dir__ = lazy_exports(__name__, _MODULES)

__all__ = [
    "BackgroundGenerator",
    "BlockShuffleSampler",
    "ClassBalancedSampler",
    "DBLoaderError",
    "DataLoaderX",
    "DecodeTensor",
    "ImageFormat",
    "LMDBDataset",
    "Manifest",
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
    "SampleRNG",
    "SeededBatchSampler",
    "ShuffleSampler",
    "Stats",
    "ThreadLoader",
    "WeightedSampler",
    "__version__",
    "background",
    "convert",
    "copy_store",
    "create_loader",
    "create_store",
    "decode_pil",
    "open_store",
    "warm",
    "write_store",
]
