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

from dbloader._extensions import COMMANDS, MISSING, has_extensions, installed_commands
from dbloader._version import __version__
from dbloader.cli.text import complain, say
from dbloader.errors import DBLoaderError

if TYPE_CHECKING:
    from typing import TextIO

FAILED = 2
# Messages of the errors that Python raises if no memory is left for a library or a new thread.
_NO_MEMORY = re.compile(
    "failed to map segment|[Cc]annot allocate memory|can't start new thread|returned NULL without setting an exception"
)
INTERRUPTED = 130  # as a shell returns after Ctrl-C: 128 + SIGINT


class _Commands(click.Group):
    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return installed_commands()

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in installed_commands():
            return None
        module = import_module(f"dbloader.{COMMANDS[cmd_name]}")  # some import slowly
        return cast("click.Command", getattr(module, f"{cmd_name}_command"))


@click.group(
    cls=_Commands,
    # for a mistyped command, click 8.4 and later suggests the closest of these names
    commands=dict.fromkeys(installed_commands()),
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
  train = LMDBDataset("train.lmdb")  # like ImageFolder, with transform= too""",
)
@click.version_option(__version__, "-V", "--version", prog_name="dbloader")
@click.pass_context
def group(context: click.Context) -> None:
    """Turn a folder of images into one fast, verified database for training."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Run the command line. An error is printed in one line, with exit status 2."""
    instruction = os.environ.get("_DBLOADER_COMPLETE")
    if instruction:  # the shell requests its completion script, or the user has pressed Tab
        sys.exit(shell_complete(group, {}, "dbloader", "_DBLOADER_COMPLETE", instruction))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the terminal's encoding may lack characters of a name
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say(f"Warning: {message}", err=True)
        try:
            status = _run(sys.argv[1:])
        except OSError:
            status = FAILED  # nothing can be written to stderr
    _flush(sys.stderr)
    sys.exit(status)


def _run(arguments: list[str]) -> int:
    try:
        # group.main() would print errors differently, and return other exit statuses for Ctrl-C and closed pipes.
        with group.make_context("dbloader", [*arguments]) as context:  # a copy, because click empties the list
            return group.invoke(context) or 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        where = getattr(error, "ctx", None)
        more = "" if has_extensions() or "No such" not in error.message else f"; others are in {MISSING}"
        return _fail(error.format_message() + (f" (see {where.command_path} --help)" if where else "") + more)
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
        is_closed = isinstance(error, BrokenPipeError) and not notes
        if not is_closed:
            _fail(": ".join(str(part) for part in (error.filename, error.strerror or error, *notes) if part))
        _flush(sys.stdout)
        # `dbloader ls | head` closes the pipe early, which is no error. Other commands may leave unfinished work.
        is_help = not arguments or not {"-h", "--help"}.isdisjoint(arguments)
        is_list = is_help or COMMANDS.get(arguments[0]) in (None, "cli.info", "ext.cli.ls", "ext.cli.show")
        return 0 if is_closed and is_list else FAILED
    except Exception as error:
        if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
            return _fail(f"no memory is left ({str(error) or 'MemoryError'}): raise the limit of memory (ulimit -v)")
        # This is a bug in dbloader. Python would print the traceback without escaping, and exit with status 1.
        for line in traceback.format_exc().splitlines():
            say(line, err=True)
        return FAILED


def _flush(stream: TextIO | None) -> None:
    """Flush a standard stream. If that fails, discard the unwritten text. Otherwise Python would write it at exit."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str) -> int:
    with suppress(OSError):  # if stderr is closed, the exit status still shows the error
        complain(message)
    return FAILED
