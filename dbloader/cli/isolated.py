"""Run a function in another process, because reading a damaged LMDB file can crash a process."""

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

# If a page is damaged, LMDB may read beyond the end of the file, follow a wild pointer or fail an assertion.
_CRASHES = (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE)


def isolated(function: str, place: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of dbloader in another process. If no place is a file, call the function in this process.

    ``function`` is a module and a name, such as ``"stores.open.open_store"``. All positional arguments are places.
    Return the function's result. A dataclass is returned as a dict. This process raises the function's errors and
    warnings. It also calls the callbacks among the options, such as ``progress``.

    Raises:
        DamagedStoreError: The other process crashed.
        StoreError: The other process was killed.
    """
    # This leaves out places that are not files, such as mongodb:// URIs.
    files = [*filter(os.path.exists, (place, *arguments, options.get("against") or ""))]
    if not files:
        return _plain(_find(function)(place, *arguments, **options))
    calls = {name: option for name, option in options.items() if callable(option)}
    options = {name: option for name, option in options.items() if name not in calls}
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, function, (place, *arguments), options, [*calls]))
    with sigint_blocked():  # a terminal sends SIGINT to both processes, but only this process should handle it
        process.start()
    sender.close()
    try:
        while True:
            kind, value = receiver.recv()
            if kind == "error":
                raise value
            if kind == "result":
                return value
            if kind == "warning":
                warnings.warn(value[0], value[1], stacklevel=2)
            else:
                calls[kind](*value)
    except EOFError:
        process.join()
        code = process.exitcode or 0
        name = signal.Signals(-code).name if code < 0 else f"status {code}"
        read = " or ".join(files)
        if -code in _CRASHES:
            what = f"{read} is damaged: the process that read it crashed with {name}"
            raise DamagedStoreError(f"{what}; copy it again from the original") from None
        raise StoreError(f"the process that read {read} was killed by {name}") from None
    finally:
        receiver.close()
        process.terminate()
        process.join()
        process.close()


def _run(
    sender: Connection, function: str, arguments: tuple[Any, ...], options: dict[str, Any], calls: list[str]
) -> None:
    signal.signal(signal.SIGTERM, _end_once)  # lets the function clean up before the process ends
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Discard stderr (descriptor 2), because LMDB prints failed assertions there. If the command was started without
    # stderr, descriptor 2 may be the pipe to the parent. Do not discard the pipe.
    if sender.fileno() != 2:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        lock = threading.Lock()  # lets only one thread send at a time

        def call(name: str, *values: Any) -> None:
            with lock:
                sender.send((name, values))

        callbacks = {name: partial(call, name) for name in calls}
        # Send warnings to the parent, because this process has no stderr.
        warnings.showwarning = lambda message, category, *_, **__: call("warning", str(message), category)
        sender.send(("result", _plain(_find(function)(*arguments, **callbacks, **options))))
    except BrokenPipeError:
        pass  # the parent process has ended
    except Exception as error:
        sender.send(("error", error))


def _end_once(*_: object) -> None:
    """Exit, and ignore further signals, because they would interrupt the cleanup."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def _end_with_parent() -> None:
    """Wait until the parent process ends for any reason, then end this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _find(function: str) -> Any:
    module, _, name = function.rpartition(".")
    return getattr(import_module(f"dbloader.{module}"), name)
