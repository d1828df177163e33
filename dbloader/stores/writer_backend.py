"""What a backend implements to write stores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dbloader.errors import DamagedStoreError
    from dbloader.records.manifest import Manifest
    from dbloader.stores.write_buffer import Commit


class WriterBackend(ABC):
    """The part of a Writer that differs between LMDB and MongoDB."""

    commits_at_once = 1
    """Factor for COMMIT_BYTES, for a backend whose commits cost more than a sync of the disk."""

    @abstractmethod
    def _damaged(self, what: str) -> DamagedStoreError:
        """Return the error for an unfinished store that cannot be used."""

    @abstractmethod
    def _open(self) -> None:
        """Lock the place for this process, and call ``_restore`` if an unfinished writer is to be resumed."""

    @abstractmethod
    def _close(self) -> None:
        """Release the place, and remove what is neither finished nor to be resumed."""

    @abstractmethod
    def _store(self, commit: Commit, progress: Mapping[str, Any]) -> None:
        """Store all of a commit, durably, or none of it. Runs in the committer's thread."""

    @abstractmethod
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        """Return the packed columns of one chunk."""

    @abstractmethod
    def _publish(self, manifest: Manifest) -> None:
        """Write the manifest and put the store at the place."""
