"""Pass the attributes of a loader on through an object that stands in front of it."""

from __future__ import annotations

from typing import Any

from dbloader.errors import LoaderError
from dbloader.loading.known_loaders import dataset_of

# Not passed on to the loader, which would tell what it has made, not what the consumer has received.
_OWN = ("state_dict", "load_state_dict")


def _attribute_of_loader(name: str) -> property:
    return property(lambda self: getattr(self._loader, name), doc=f"The loader's ``{name}``.")


class LoaderProxy:
    """An object that has the public attributes of the loader behind it."""

    _loader: Any

    def __len__(self) -> int:
        return len(self._loader)  # whose error says what has no length

    @property
    def dataset(self) -> Any:
        """The dataset whose samples are in the batches."""
        dataset = dataset_of(self._loader)
        return self._loader.dataset if dataset is None else dataset

    sampler = _attribute_of_loader("sampler")
    batch_sampler = _attribute_of_loader("batch_sampler")
    batch_size = _attribute_of_loader("batch_size")
    drop_last = _attribute_of_loader("drop_last")
    num_workers = _attribute_of_loader("num_workers")

    @property
    def multiprocessing_context(self) -> Any:
        """Raise an error: this is read to make a new DataLoader of this one's parts, which would not prepare batches.

        Tools that read every attribute, such as inspect.getmembers, get the error too.

        Raises:
            LoaderError: Always.
        """
        raise LoaderError(
            "a loader made of the parts of a PrefetchLoader, as accelerate.skip_first_batches and the resume of the "
            "Hugging Face Trainer make it, would neither prepare its batches nor send them: save state_dict(), and go "
            "on with load_state_dict() (with the Trainer, pass ignore_data_skip=True; docs/loading.md shows how)"
        )

    def __getattr__(self, name: str) -> Any:
        # Private names are not passed on: pickle and copy ask for some before there is a loader.
        if name.startswith("_") or name in _OWN:
            why = ": resuming needs one of dbloader's samplers, or a loader with a state_dict of its own"
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{why if name in _OWN else ''}"
            )
        return getattr(self._loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader the epoch, before the first batch of an iteration; else its samplers and dataset.

        Inside a loop over the loader it has no effect, since the next batch comes after it.
        """
        parts: list[Any] = [self._loader]
        if not hasattr(self._loader, "set_epoch"):
            parts = [getattr(self, name, None) for name in ("batch_sampler", "sampler", "dataset")]
            parts.append(getattr(parts[0], "sampler", None))  # not the loader's, if that was given a batch_sampler
        for part in {id(part): part for part in parts if hasattr(part, "set_epoch")}.values():
            part.set_epoch(epoch)
