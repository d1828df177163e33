"""The command line: parses, calls one library function, prints. The only code that prints."""

from __future__ import annotations

import os
import sys

import click

from dbloader.cli.convert import convert_command
from dbloader.cli.info import info_command
from dbloader.cli.verify import verify_command
from dbloader.errors import DBLoaderError
from dbloader.version import VERSION

FAILED = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  dbloader convert imagefolder/ train.lmdb
  dbloader info train.lmdb
  dbloader verify train.lmdb

\b
In Python:
  from dbloader import LMDBDataset
  train = LMDBDataset("train.lmdb", transform=...)""",
)
@click.version_option(VERSION, "-V", "--version", prog_name="dbloader")
def group() -> None:
    """Turn a folder of images into one fast, verified database, and look into it."""


group.add_command(convert_command)
group.add_command(info_command)
group.add_command(verify_command)


def main() -> None:
    """Runs the command line; every error of ours becomes one line and exit status 2."""
    try:
        status = group(standalone_mode=False)
    except click.exceptions.Exit as stop:
        status = stop.exit_code
    except click.ClickException as error:
        error.show()
        status = FAILED
    except DBLoaderError as error:
        click.echo(f"Error: {error}", err=True)
        status = FAILED
    except (KeyboardInterrupt, click.Abort):
        click.echo("Interrupted.", err=True)
        status = INTERRUPTED
    except BrokenPipeError:
        # Somebody like head has read enough; nothing more can be said, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = FAILED
    sys.exit(status or 0)
