"""Call the training view in a separate process. When the process ends, torch's 150 MB of memory are free again.

This module imports no torch.
"""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader._machine import sigint_blocked
from dbloader.errors import DBLoaderError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from dbloader.stores.base import Store

_IDLE_S = 60  # the process ends after this time without calls
_REPLACED = "another store is at this place now: start the viewer again to see it"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest:
    """A page's request: the batch of a step, or the image of a record at a position in the epoch.

    Attributes:
        number: Number of the store.
        options: Fields of ``training.Options``.
        index: Index of the record; None for a batch.
        position: Position of the record in the epoch; None for a batch.
    """

    number: int
    options: dict[str, Any]
    index: int | None = None
    position: int | None = None

    def answer(self, dataset: Any, transform: Any) -> Any:
        """Return what the page shows of a store or a mixture. Raise OptionError if torch is not installed."""
        try:
            from dbloader.ext.viewing import training
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise OptionError("this page needs torch, which is not installed here: pip install torch") from error
        options = training.Options(**self.options)
        if self.index is None or self.position is None:
            return training.show_batch(dataset, options, transform)
        return training.show_image(dataset, self.index, self.position, options, transform)


class _Answer(NamedTuple):
    """What the process sends: a value, or the error to raise."""

    value: Any = None
    error: Exception | None = None


class TrainingView:
    """Answers requests about the training. Threads may share this object.

    Args:
        stores: The stores.
        transform: The user's transform, or None for the default of `create_loader`. With ``own_process``, this is the
            name ``module:name`` (see ``load_transform``), because another process loads the transform. A wrong name
            raises an OptionError at once.
        mixture: A mixture of the stores. If given, the view shows the mixture's training.
        own_process: Answer in another process. The process is a new Python, so the main module must be
            importable. It ends after a minute without calls.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        transform: Callable[..., Any] | str | None = None,
        mixture: Any = None,
        *,
        own_process: bool = False,
    ) -> None:
        self._stores, self._transform, self._mixture = stores, transform, mixture
        self._own_process = own_process
        self._lock = threading.Lock()
        self._process: Any = None
        self._connection: Connection | None = None
        if own_process and transform is not None:
            self._connect()

    def answer(self, request: TrainingRequest) -> Any:
        """Return the answer to a request.

        Raises:
            OptionError: The request is wrong, torch is not installed, or another store is at the place now.
            DBLoaderError: The process was killed during the call.
        """
        store = self._stores[request.number]
        if not self._own_process:
            return request.answer(self._mixture or store, self._transform)
        digest = store.manifest.digest
        with self._lock:
            for _ in range(2):  # the idle process may have ended just before the first attempt
                try:
                    connection = self._connection or self._connect()
                    connection.send((request, digest))
                    answer: _Answer = connection.recv()
                    break
                except (EOFError, OSError):
                    self.close()
            else:
                raise DBLoaderError("the process of this page was killed: the store is damaged, or memory is short")
        if answer.error is not None:
            raise answer.error
        return answer.value

    def _connect(self) -> Connection:
        """Start the process. Raise the error if it cannot load the transform."""
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        # Pass the stores as arguments, because a pickled store has its password only while a process starts.
        self._process = context.Process(target=_answer, args=(other, [*self._stores], self._transform), daemon=True)
        with sigint_blocked(), other:
            self._process.start()
        try:
            error = None if self._transform is None else self._connection.recv()
        except EOFError:
            error = OptionError(f"the transform {self._transform} cannot be loaded: its import ended the process")
        if error is not None:
            self.close()
            raise error
        return self._connection

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()
            self._process.terminate()
            self._process.join()
            self._process = self._connection = None


def load_transform(name: str) -> Any:
    """Import the transform ``module:name``. The current directory is searched first, as by ``python -m``.

    A function or class that can be called without arguments is called, and its result is the transform.

    Raises:
        OptionError: The module cannot be imported, does not have the name, or the transform cannot be called.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise OptionError(f"a transform must be MODULE:NAME, such as train:make_transform, got {name!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
        if inspect.isfunction(found) or inspect.isclass(found):
            parameters = inspect.signature(found).parameters.values()
            if all(parameter.default is not parameter.empty for parameter in parameters):
                found = found()
    except Exception as error:  # the module is the user's code
        raise OptionError(f"the transform {name} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise OptionError(f"the transform {name} must be a callable, or a function that returns one, got {found!r}")
    return found


def _answer(connection: Connection, stores: list[Store], name: str | None = None) -> None:
    transform = None
    if name is not None:
        try:
            transform = load_transform(name)
        except OptionError as error:
            connection.send(error)
            return
        connection.send(None)
    while connection.poll(_IDLE_S):
        try:
            request, digest = connection.recv()
        except EOFError:  # the viewer has ended
            return
        answer = _Answer(error=OptionError(_REPLACED))
        try:
            store = stores[request.number]
            if store.manifest.digest == digest:
                answer = _Answer(request.answer(store, transform))
        except DBLoaderError as error:
            answer = _Answer(error=error)
        except Exception:
            answer = _Answer(error=RuntimeError(traceback.format_exc()))
        connection.send(answer)
