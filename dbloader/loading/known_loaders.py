"""Recognize loaders: can this one be resumed, and do the ranks share its samples?

Loaders are recognized by their attributes and by modules that are already imported: nothing is imported here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dbloader.errors import OptionError
from dbloader.loading.checkpoint import LoaderCheckpoint, SamplerCheckpoint

if TYPE_CHECKING:
    from dbloader.loading.checkpoint import Checkpoint


def find_checkpoint(loader: Any) -> Checkpoint | None:
    """Return how a loader is resumed, or None if it cannot be."""
    batches: Any = getattr(loader, "batch_sampler", Ellipsis)
    sampler: Any = getattr(loader if batches is None else batches, "sampler", None)
    if all(hasattr(sampler, name) for name in ("positions", "hold", "load_state_dict")):
        ahead = max(1, getattr(loader, "num_workers", 0)) * (getattr(loader, "prefetch_factor", None) or 1)
        of: dict[str, Any] = {"dataset": dataset_of(loader), "ahead": ahead}
        if batches is None:  # a DataLoader with batch_size=None: each sample is a batch
            return SamplerCheckpoint(sampler, 1, drop_last=False, **of)
        if keeps_order(batches):
            return SamplerCheckpoint(sampler, batches.batch_size, drop_last=batches.drop_last, **of)
    # A loader that Accelerate has prepared always has these methods, but a state only if the loader inside has one.
    inner = getattr(loader, "base_dataloader", loader)
    if hasattr(inner, "state_dict") and hasattr(inner, "load_state_dict"):
        return LoaderCheckpoint(loader)
    return None


def dataset_of(loader: Any) -> Any:
    """Return the dataset that a loader's samples are of, or None."""
    source = getattr(loader, "source_dataset", None)  # of a ProcessLoader, whose ``dataset`` gives batches
    return getattr(loader, "dataset", None) if source is None else source


def keeps_order(batches: Any) -> bool:
    """Return whether each batch is the next ``batch_size`` samples of its sampler; False for unknown classes."""
    for module, name in (
        ("torch.utils.data", "BatchSampler"),
        ("torchdata.stateful_dataloader.sampler", "BatchSampler"),
        ("dbloader.sampling", "SeededBatchSampler"),
    ):
        known = getattr(sys.modules.get(module), name, None)
        if known is not None and getattr(type(batches), "__iter__", None) is known.__iter__:
            return True
    return False


def check_shared(loader: Any) -> None:
    """Raise OptionError for a DataLoader that shuffles all samples in each of several processes."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    dispatcher = getattr(sys.modules.get("accelerate.data_loader"), "DataLoaderDispatcher", None)
    if dispatcher is not None and isinstance(loader, dispatcher):  # it reads in one process and shares the batches
        return
    batches = getattr(loader, "batch_sampler", None)
    world = distributed.get_world_size()
    shuffles = type(getattr(batches, "sampler", None)) is sys.modules["torch.utils.data"].RandomSampler
    if world > 1 and keeps_order(batches) and shuffles:
        raise OptionError(
            f"shuffle=True does not share the samples among the {world} processes. If all of them have the same "
            "dataset, each would train on all of it: pass sampler=ShuffleSampler(dataset) instead. If each has only "
            "its own part, pass sampler=ShuffleSampler(dataset, num_replicas=1, rank=0), which shuffles that"
        )
