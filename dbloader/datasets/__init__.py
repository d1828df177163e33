"""Datasets: the records of a store as samples, in place of torchvision's ImageFolder."""

from dbloader.datasets.base import StoreDataset
from dbloader.datasets.lmdb import LMDBDataset
from dbloader.datasets.samples import Samples

__all__ = ["LMDBDataset", "Samples", "StoreDataset"]
