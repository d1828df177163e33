"""dbloader: turn a folder of images into one fast, verified database and feed the GPU from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader._lazy import lazy_exports
from dbloader._version import VERSION

if TYPE_CHECKING:
    from dbloader.conversion.convert import convert
    from dbloader.conversion.copy_store import copy_store
    from dbloader.conversion.transcode import ImageFormat
    from dbloader.conversion.write_store import write_store
    from dbloader.datasets.lmdb import LMDBDataset
    from dbloader.datasets.mongo import MongoDataset
    from dbloader.decoding.center_crop import ResizeCenterCrop
    from dbloader.decoding.random_crop import RandomResizedCrop
    from dbloader.errors import DBLoaderError
    from dbloader.loading.create import create_loader
    from dbloader.loading.prefetch import PrefetchLoader
    from dbloader.loading.threads import ThreadLoader
    from dbloader.records.record import Record
    from dbloader.stores.lmdb.page_cache import warm
    from dbloader.stores.open import create_store, open_store

__version__ = VERSION

_MODULES = {
    "DBLoaderError": "errors",
    "ImageFormat": "conversion.transcode",
    "LMDBDataset": "datasets.lmdb",
    "MongoDataset": "datasets.mongo",
    "PrefetchLoader": "loading.prefetch",
    "RandomResizedCrop": "decoding.random_crop",
    "Record": "records.record",
    "ResizeCenterCrop": "decoding.center_crop",
    "ThreadLoader": "loading.threads",
    "convert": "conversion.convert",
    "copy_store": "conversion.copy_store",
    "create_loader": "loading.create",
    "create_store": "stores.open",
    "open_store": "stores.open",
    "warm": "stores.lmdb.page_cache",
    "write_store": "conversion.write_store",
}

__getattr__, __dir__ = lazy_exports(__name__, _MODULES)

__all__ = [
    "DBLoaderError",
    "ImageFormat",
    "LMDBDataset",
    "MongoDataset",
    "PrefetchLoader",
    "RandomResizedCrop",
    "Record",
    "ResizeCenterCrop",
    "ThreadLoader",
    "__version__",
    "convert",
    "copy_store",
    "create_loader",
    "create_store",
    "open_store",
    "warm",
    "write_store",
]
