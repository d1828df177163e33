"""The command line: parses, calls one library function, prints. The only code that prints."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import cast

import click
from typing_extensions import override

from dbloader.cli.text import printable
from dbloader.errors import DBLoaderError
from dbloader.version import VERSION

FAILED = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

# Each in the module of its name, which is imported when it is wanted: some need much that others do not.
_COMMANDS = ("bench", "convert", "info", "mirror", "verify", "warm")


class _Commands(click.Group):
    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return cast("click.Command", getattr(import_module(f"dbloader.cli.{cmd_name}"), f"{cmd_name}_command"))


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
    """Runs the command line; every error becomes one line and exit status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name or bar that the terminal has no letters for
    try:
        # Not group.main(), which answers Ctrl-C and closed pipes with lines and statuses of its own.
        with group.make_context("dbloader", sys.argv[1:]) as context:
            status = group.invoke(context)
    except click.exceptions.Exit as stop:
        status = stop.exit_code
    except click.ClickException as error:
        status = _fail(error.format_message() + _where_to_look(error))
    except DBLoaderError as error:
        status = _fail(str(error))
    except KeyboardInterrupt as error:
        click.echo(": ".join(["Interrupted", *map(str, error.args)]), err=True)
        status = INTERRUPTED
    except BrokenPipeError:
        _silence()  # somebody like head has read enough
        status = FAILED
    except UnicodeEncodeError as error:
        from dbloader.sources.base import readable

        status = _fail(f"{readable(error.object)}: its name is not valid UTF-8; rename it, or a folder that it is in")
    except OSError as error:
        status = _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
        try:
            sys.stdout.flush()
        except OSError:
            _silence()  # what could not be written, Python would try again at exit
    sys.exit(status or 0)


def _silence() -> None:
    """Lets nothing more be written to standard output, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> int:
    click.echo(f"Error: {printable(' '.join(message.splitlines()))}", err=True)
    return FAILED


def _where_to_look(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f" (see {context.command_path} --help)" if context else ""
