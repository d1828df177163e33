"""The command line: parse arguments, call one library function, print. No other code prints."""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
import warnings
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, cast

import click
from click.shell_completion import shell_complete
from typing_extensions import override

from dbloader._version import __version__
from dbloader.cli.text import complain, say
from dbloader.errors import DBLoaderError

if TYPE_CHECKING:
    from typing import TextIO

FAILED = 2
# Messages of an ImportError or RuntimeError when the dynamic linker or a new thread gets no memory.
_NO_MEMORY = re.compile("failed to map segment|[Cc]annot allocate memory|can't start new thread")
INTERRUPTED = 130  # 128 + SIGINT, as shells return it

# Each command is in the module of its name, or in parts.py. The module is imported when the command runs: bench needs
# torch, which takes over a second.
_IN_PARTS = ("plan", "part", "parts", "publish")
_COMMANDS = (
    "convert", "info", "ls", "show", "view", "verify", "duplicates", "copy", "export", "cache", "bench", "doctor",
    *_IN_PARTS,
)  # fmt: skip


class _Commands(click.Group):
    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"dbloader.cli.{'parts' if cmd_name in _IN_PARTS else cmd_name}")
        return cast("click.Command", getattr(module, f"{cmd_name}_command"))


@click.group(
    cls=_Commands,
    commands=dict.fromkeys(_COMMANDS),  # click 8.4 and later suggests one of these for a mistyped name
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  dbloader convert imagefolder/ train.lmdb
  dbloader view train.lmdb
  dbloader verify train.lmdb
  dbloader copy train.lmdb cats.lmdb --class cat
  dbloader export train.lmdb images/
  dbloader bench train.lmdb

\b
Then in Python:
  from dbloader import LMDBDataset
  train = LMDBDataset("train.lmdb")  # like ImageFolder; takes transform= too""",
)
@click.version_option(__version__, "-V", "--version", prog_name="dbloader")
@click.pass_context
def group(context: click.Context) -> None:
    """Turn a folder of images into one fast, verified database for training."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Run the command line. An error is printed as one line, and the exit status is then 2."""
    instruction = os.environ.get("_DBLOADER_COMPLETE")
    if instruction:  # the shell asks for its completion script, or the user has pressed Tab
        sys.exit(shell_complete(group, {}, "dbloader", "_DBLOADER_COMPLETE", instruction))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the terminal's encoding may lack letters of a name
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say(f"Warning: {message}", err=True)
        try:
            status = _run(sys.argv[1:])
        except OSError:
            status = FAILED  # stderr cannot be written
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except OSError:
            _silence(sys.stderr)
    sys.exit(status)


def _run(arguments: list[str]) -> int:
    try:
        # group.main() would print other messages, and return other statuses for Ctrl-C and closed pipes.
        with group.make_context("dbloader", arguments) as context:
            return group.invoke(context) or 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return _fail(error.format_message() + _hint(error, arguments))
    except DBLoaderError as error:
        return _fail(str(error))
    except KeyboardInterrupt as error:
        say(": ".join(["Interrupted", *map(str, error.args)]), err=True)
        return INTERRUPTED
    except UnicodeEncodeError as error:
        from dbloader.sources.base import readable

        return _fail(f"{readable(error.object)}: the path is not valid UTF-8; rename the file or the folder")
    except OSError as error:
        notes: list[str] = getattr(error, "__notes__", [])
        # A program such as head may close the pipe early, which is no error.
        if notes or not isinstance(error, BrokenPipeError):
            _fail(": ".join(str(part) for part in (error.filename, error.strerror or error, *notes) if part))
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            _silence(sys.stdout)  # otherwise Python writes the rest again at exit
        return FAILED
    except Exception as error:
        if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
            return _fail(f"no memory is left ({str(error) or 'MemoryError'}): allow this process more (ulimit -v)")
        # A bug in dbloader. Python itself would print the traceback unescaped, and exit with status 1.
        for line in traceback.format_exc().splitlines():
            say(line, err=True)
        return FAILED


def _silence(stream: TextIO) -> None:
    """Discard everything that is still written to a standard stream, also at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str) -> int:
    with suppress(OSError):  # stderr may be closed; the exit status remains
        complain(message)
    return FAILED


def _hint(error: click.ClickException, arguments: list[str]) -> str:
    if isinstance(error, click.BadOptionUsage) and error.ctx is None:  # the option is the last word, without its value
        return f" (see dbloader {arguments[0]} --help)"
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return ""
    hint = f" (see {context.command_path} --help)"
    if context.info_name == "convert" and "extra arguments" in error.format_message():
        # Without quotes, the shell has expanded a pattern to several arguments.
        return f"; to convert several files, name their folder, or write 'shard-{{000..146}}.tar' in quotes{hint}"
    return hint
