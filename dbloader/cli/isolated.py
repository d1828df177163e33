"""Run a function in another process: reading a damaged LMDB file can crash the process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from dataclasses import asdict, is_dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dbloader._machine import sigint_blocked
from dbloader.errors import DamagedStoreError, StoreError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# With a damaged page, LMDB reads beyond the end of the file, follows wild pointers or fails an assertion.
_CRASHES = (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE)


def isolated(function: str, place: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of dbloader in another process; in this process if none of the places is a file.

    Return the result; a dataclass is returned as a dict. An error of the function is raised in this process, and its
    warnings are issued here.

    Args:
        function: Module and name of the function, such as ``"stores.open.open_store"``.
        place: The first argument.
        arguments: More places.
        options: Keyword arguments. Functions in them, such as ``progress``, are called in this process.

    Raises:
        DamagedStoreError: The process crashed.
        StoreError: Another signal ended the process.
    """
    files = [*filter(os.path.exists, (place, *arguments, options.get("against") or ""))]  # no URI is a path
    if not files:
        return _plain(_find(function)(place, *arguments, **options))
    calls = {name: option for name, option in options.items() if callable(option)}
    options = {name: option for name, option in options.items() if name not in calls}
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, function, (place, *arguments), options, [*calls]))
    with sigint_blocked():  # a terminal sends SIGINT to both processes, and only this one handles it
        process.start()
    sender.close()
    last = ""
    try:
        while True:
            kind, value = receiver.recv()
            if kind == "error":
                raise value
            if kind == "result":
                return value
            if kind == "warning":
                warnings.warn(value[0], value[1], stacklevel=2)
                continue
            if kind == "progress":
                last = f"after {value[-2]:,} of {value[-1]:,} records "
            calls[kind](*value)
    except EOFError:
        process.join()
        code = process.exitcode or 0
        name = signal.Signals(-code).name if code < 0 else f"status {code}"
        if -code in _CRASHES:
            what = f"{' or '.join(files)} is damaged: {last}reading it ended the process with {name}"
            raise DamagedStoreError(f"{what}; copy it again from the original") from None
        raise StoreError(f"the process that read {' or '.join(files)} was ended {last}by {name}") from None
    finally:
        receiver.close()
        process.terminate()
        process.join()
        process.close()


def _run(
    sender: Connection, function: str, arguments: tuple[Any, ...], options: dict[str, Any], calls: list[str]
) -> None:
    signal.signal(signal.SIGTERM, _end_once)  # the function cleans up before the process ends
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if sender.fileno() != 2:  # the command was started without stderr, and the pipe has got its number
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # LMDB prints its failed assertions there
    try:
        lock = threading.Lock()  # only one thread may send at a time

        def call(name: str, *values: Any) -> None:
            with lock:
                sender.send((name, values))

        callbacks = {name: partial(call, name) for name in calls}
        # The stderr of this process is not shown. The process ends after the call, so nothing restores showwarning.
        warnings.showwarning = lambda message, category, *_, **__: call("warning", str(message), category)
        sender.send(("result", _plain(_find(function)(*arguments, **callbacks, **options))))
    except BrokenPipeError:
        pass  # the command has ended
    except Exception as error:
        sender.send(("error", error))


def _end_once(*_: object) -> None:
    """Exit, and ignore further signals, which would interrupt the cleanup."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def _end_with_parent() -> None:
    """Wait until the parent has ended, perhaps killed, and end this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _find(function: str) -> Any:
    module, _, name = function.rpartition(".")
    return getattr(import_module(f"dbloader.{module}"), name)
