"""The command line: parses, calls one library function, prints. The only code that prints."""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, cast

import click
from click.shell_completion import get_completion_class, shell_complete
from typing_extensions import override

from dbloader._version import VERSION
from dbloader.cli.redacting import hide
from dbloader.cli.text import complain, say
from dbloader.errors import DBLoaderError

if TYPE_CHECKING:
    from typing import TextIO

FAILED = 2
_COMPLETE = "_DBLOADER_COMPLETE"
_SHELLS = ("bash", "fish", "zsh")
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

# Each in the module of its name, which is imported when it is wanted: some need much that others do not.
_COMMANDS = ("bench", "convert", "info", "copy", "verify", "warm")


class _Commands(click.Group):
    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return cast("click.Command", getattr(import_module(f"dbloader.cli.{cmd_name}"), f"{cmd_name}_command"))

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = str(args[0])
        if name not in _COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            meant = "".join(f" Did you mean {close!r}?" for close in get_close_matches(name, _COMMANDS, 1))
            ctx.fail(f"No such command {name!r}.{meant}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  dbloader convert imagefolder/ train.lmdb
  dbloader convert imagefolder/ mongodb://server/images.train
  dbloader info train.lmdb
  dbloader verify train.lmdb
  dbloader warm train.lmdb
  dbloader bench train.lmdb

\b
In Python:
  from dbloader import LMDBDataset
  train = LMDBDataset("train.lmdb")  # with transform=, as for ImageFolder""",
)
@click.version_option(VERSION, "-V", "--version", prog_name="dbloader")
@click.pass_context
def group(context: click.Context) -> None:
    """Turn a folder of images into one fast, verified database, and look into it."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Run the command line: every error becomes one line and exit status 2."""
    instruction = os.environ.get(_COMPLETE)
    if instruction:  # what a shell asks for when Tab is pressed, and once at its start
        sys.exit(_complete(instruction))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name or bar that the terminal has no letters for
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say(f"Warning: {message}", err=True)
        try:
            status = _run(hide(sys.argv[1:]))
        except OSError:
            status = FAILED  # an error came, and standard error cannot be written
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except OSError:
            _silence(sys.stderr)
    sys.exit(status)


def _complete(instruction: str) -> int:
    shell, _, what = instruction.partition("_")
    if get_completion_class(shell) is None or what not in ("source", "complete"):
        scripts = ", ".join(f"{shell}_source" for shell in _SHELLS)
        return _fail(
            f"the environment variable {_COMPLETE} must be one of {scripts}, which print what the shell of that name "
            f"needs to complete words, got {instruction!r}; unset it to run a command"
        )
    try:
        return shell_complete(group, {}, "dbloader", _COMPLETE, instruction)
    except KeyError as error:  # the variables in which a shell gives the line
        return _fail(f"{_COMPLETE}={instruction} is for the shell, which sets {error} too; unset it to run a command")


def _run(arguments: list[str]) -> int:
    try:
        # Not group.main(), which answers Ctrl-C and closed pipes with lines and statuses of its own.
        with group.make_context("dbloader", arguments) as context:
            return group.invoke(context) or 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return _fail(error.format_message() + _where_to_look(error))
    except DBLoaderError as error:
        return _fail(str(error))
    except KeyboardInterrupt as error:
        say(": ".join(["Interrupted", *map(str, error.args)]), err=True)
        return INTERRUPTED
    except BrokenPipeError:
        _silence(sys.stdout)  # the reader, such as head, has closed the pipe
        return FAILED
    except UnicodeEncodeError as error:
        from dbloader.sources.base import readable

        return _fail(f"{readable(error.object)}: its name is not valid UTF-8; rename it, or a folder that it is in")
    except OSError as error:
        status = _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            _silence(sys.stdout)  # what could not be written, Python would try again at exit
        return status
    except Exception:
        # A bug in dbloader. Python would print the same, but unescaped, and exit with 1, which means other things.
        for line in traceback.format_exc().splitlines():
            say(line, err=True)
        return FAILED


def _silence(stream: TextIO) -> None:
    """Let nothing more be written to a standard stream, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str) -> int:
    with suppress(OSError):  # standard error cannot be written: the status still tells
        complain(message)
    return FAILED


def _where_to_look(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f" (see {context.command_path} --help)" if context else ""
