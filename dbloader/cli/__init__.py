"""The command line: parses, calls one library function, prints. The only code that prints."""

from __future__ import annotations

import io
import os
import sys

import click

from dbloader.cli.bench import bench_command
from dbloader.cli.convert import convert_command
from dbloader.cli.info import info_command
from dbloader.cli.mirror import mirror_command
from dbloader.cli.verify import verify_command
from dbloader.cli.warm import warm_command
from dbloader.errors import DBLoaderError
from dbloader.sources.base import readable
from dbloader.version import VERSION

FAILED = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@click.group(
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


group.add_command(convert_command)
group.add_command(info_command)
group.add_command(verify_command)
group.add_command(mirror_command)
group.add_command(warm_command)
group.add_command(bench_command)


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
    click.echo(f"Error: {' '.join(message.splitlines())}", err=True)
    return FAILED


def _where_to_look(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f" (see {context.command_path} --help)" if context else ""
