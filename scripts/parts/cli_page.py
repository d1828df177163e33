"""Prints docs/cli.md, which is what every command says with --help; scripts/docs writes the file."""

from __future__ import annotations

import click

from dbloader.cli import group

WIDTH = 96  # columns, whatever the terminal has

HEAD = """\
# Command line

Made by `scripts/docs` from what the commands say with `--help`; a test compares.

An error is one line on stderr, and exit status 2; `convert` and `verify` end with 1 where files or records are bad.
Ctrl-C is exit status 130. `dbloader` and `python -m dbloader` are the same. How far a command has come is shown on
stderr: as a bar on a terminal, elsewhere, but for `bench`, as a line every 30 s (`--quiet` shows neither). What a name
or a place has of control characters is spelled out (`\\x1b`), and a password in a place is printed nowhere.

The Tab key completes commands, options and paths after one of these lines, in the file that the shell reads at its
start:

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
        parts.append(section(below.command_path, command.get_help(below)))
    return "\n".join(parts)


def section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    print(page(), end="")
