"""dbloader: turn a folder of images into one fast, verified database and feed the GPU from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader._lazy import lazy_exports

if TYPE_CHECKING:
    from dbloader._version import __version__ as __version__
    from dbloader.batches.collate import Collate as Collate
    from dbloader.checking.verify_store import verify_store as verify_store
    from dbloader.conversion.convert import convert as convert
    from dbloader.conversion.transcode import ImageFormat as ImageFormat
    from dbloader.datasets.lmdb import LMDBDataset as LMDBDataset
    from dbloader.datasets.mongo import MongoDataset as MongoDataset
    from dbloader.errors import DBLoaderError as DBLoaderError
    from dbloader.ext.batches.replacing import Skip as Skip
    from dbloader.ext.collecting.write_store import write_store as write_store
    from dbloader.ext.copying.copy_store import copy_store as copy_store
    from dbloader.ext.duplicates.search import find_duplicates as find_duplicates
    from dbloader.ext.exports.export import export_store as export_store
    from dbloader.ext.mixing.mixture import mix as mix
    from dbloader.ext.viewing.server import view as view
    from dbloader.loading.create import create_loader as create_loader
    from dbloader.loading.prefetch import PrefetchLoader as PrefetchLoader
    from dbloader.records.record import Record as Record
    from dbloader.sources.base import Listing as Listing
    from dbloader.stores.open import open_store as open_store

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Collate": "batches.collate",
        "DBLoaderError": "errors",
        "ImageFormat": "conversion.transcode",
        "LMDBDataset": "datasets.lmdb",
        "Listing": "sources.base",
        "MongoDataset": "datasets.mongo",
        "PrefetchLoader": "loading.prefetch",
        "Record": "records.record",
        "Skip": "ext.batches.replacing",
        "__version__": "_version",
        "convert": "conversion.convert",
        "copy_store": "ext.copying.copy_store",
        "create_loader": "loading.create",
        "export_store": "ext.exports.export",
        "find_duplicates": "ext.duplicates.search",
        "mix": "ext.mixing.mixture",
        "open_store": "stores.open",
        "verify_store": "checking.verify_store",
        "view": "ext.viewing.server",
        "write_store": "ext.collecting.write_store",
    },
)
