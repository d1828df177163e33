"""Print docs/cli.md: what each command prints with --help. scripts/docs writes the file."""

from __future__ import annotations

import click

from dbloader.cli import group

WIDTH = 96  # columns, whatever the terminal has

HEAD = """\
# Command line

`scripts/docs` writes this page from what the commands print with `--help`.

An error is one line on stderr and exit status 2. `convert`, `publish` and `verify` exit with status 1 if files were
rejected or records are damaged. Ctrl-C is exit status 130. `dbloader` and `python -m dbloader` are the same program.
Progress is shown on stderr: as a bar on a terminal, elsewhere (and with `TERM=dumb`) as a line every 30 s; `--quiet`
turns it off. Colors are only in the picture that `show` draws, and not with `NO_COLOR`. Control characters in names
and places are printed escaped (`\\x1b`).

To complete commands, options and paths with the Tab key, add one of these lines to the file that your shell reads when
it starts:

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
