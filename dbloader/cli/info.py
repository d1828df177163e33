"""``dbloader info``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dbloader.cli.text import printable, size
from dbloader.stores import open_store

if TYPE_CHECKING:
    from dbloader.manifest import Manifest

# Classes shown on the terminal; --json gives all.
_SHOWN = 20
_BAR = 40


@click.command(
    "info",
    short_help="Tell what is in a store.",
    epilog="""\b
Examples:
  dbloader info train.lmdb
  dbloader info train.lmdb --json | jq -r .digest
  dbloader info train.lmdb --report""",
)
@click.argument("place", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print all that the manifest says as JSON.")
@click.option("--report", is_flag=True, help="Print what the conversion reported of single files, as JSON lines.")
def info_command(place: str, *, as_json: bool, report: bool) -> None:
    """Tell what is in the store PLACE. Only its manifest, the header, is read: it takes milliseconds at any size."""
    if as_json and report:
        raise click.UsageError("--json and --report print different things: choose one.")
    with open_store(place) as store:
        if report:
            for event in store.events():
                click.echo(json.dumps(event, ensure_ascii=False))
            return
        manifest = store.manifest
    if as_json:
        click.echo(json.dumps({"place": store.place, **asdict(manifest)}, indent=2))
    else:
        _print(store.place, manifest)


def _print(place: str, manifest: Manifest) -> None:
    click.echo(f"{place}: dbloader store, format version {manifest.version}")
    formats = ", ".join(f"{count:,} {name}" for name, count in manifest.formats.items())
    if manifest.source.get("raw"):
        formats = "pixels, uint8"
    rows = [
        ("records", f"{manifest.length:,}"),
        ("images", f"{size(manifest.image_bytes)}" + (f" ({formats})" if formats else "")),
        ("depths", ", ".join(f"{count:,} {name}" for name, count in manifest.depths.items())),
        ("width", f"{manifest.width[0]:,} to {manifest.width[1]:,} pixels" if manifest.width[1] else ""),
        ("height", f"{manifest.height[0]:,} to {manifest.height[1]:,} pixels" if manifest.height[1] else ""),
        ("fields", ", ".join(f"{name} ({count:,})" for name, count in manifest.fields.items())),
        ("conversion", ", ".join(f"{count:,} {what}" for what, count in manifest.outcome.items() if count)),
        ("source", str(manifest.source.get("listing") or manifest.source.get("path") or "")),
        ("created", f"{manifest.created} by {manifest.created_by}"),
        ("digest", manifest.digest),
        ("labelled", f"{manifest.labelled:,}" if manifest.labelled != manifest.length else ""),
    ]
    for title, text in rows:
        if text:
            click.echo(f"  {title:<10}  {printable(text)}")
    _print_histogram(manifest)


def _print_histogram(manifest: Manifest) -> None:
    counts = manifest.label_counts
    if counts is None:
        click.echo("  labels      more than 65,536 different ones")
        return
    names = manifest.classes or [str(label) for label in counts]
    numbers = [counts.get(label, 0) for label in range(len(names))] if manifest.classes else list(counts.values())
    if not numbers:
        return
    title = "classes" if manifest.classes else "labels"
    click.echo(f"  {title:<10}  {len(names):,}, with {min(numbers):,} to {max(numbers):,} records")
    shown = [printable(name) for name in names[:_SHOWN]]
    width = min(30, max(map(len, shown)))
    for name, number in zip(shown, numbers, strict=False):
        short = name if len(name) <= width else name[: width - 1] + "…"
        bar = "█" * round(_BAR * number / max(numbers))
        click.echo(f"    {short:<{width}}  {number:>{len(f'{max(numbers):,}')},}  {bar}".rstrip())
    if len(names) > _SHOWN:
        click.echo(f"    and {len(names) - _SHOWN:,} more (--json gives all)")
