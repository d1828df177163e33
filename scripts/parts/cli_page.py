"""Print docs/cli.md: what each command prints with --help. scripts/docs writes the file."""

from __future__ import annotations

import re

import click

from dbloader.cli import group

WIDTH = 96  # columns, independent of the terminal

HEAD = """\
# Command line

`scripts/docs` writes this page from what the commands print with `--help`.

An error is one line on stderr. The exit status is 2 after an error, and 130 after Ctrl-C. `python -m dbloader` is the
same program. Progress is on stderr: a bar on a terminal, otherwise a line every 30 s; `--quiet` turns it off. Control
characters in names are printed escaped (`\\x1b`). Each command also has `-h, --help`.

For completion with Tab, add one of these lines to your shell's startup file:

```text
eval "$(_DBLOADER_COMPLETE=bash_source dbloader)"            # ~/.bashrc
eval "$(_DBLOADER_COMPLETE=zsh_source dbloader)"             # ~/.zshrc, below compinit
_DBLOADER_COMPLETE=fish_source dbloader | source             # ~/.config/fish/config.fish
```
"""


def page() -> str:
    settings = {**group.context_settings, "terminal_width": WIDTH}
    context = click.Context(group, info_name="dbloader", **settings)
    parts = [HEAD, section("dbloader", group.get_help(context))]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, context, name, terminal_width=WIDTH)
        text = command.get_help(below)
        parts.append(section(below.command_path, re.sub(r"  -h, --help .*\n", "", text)))
    return "\n".join(parts)


def section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    print(page(), end="")
