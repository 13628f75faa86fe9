"""The reference page of all commands, in Markdown: `python -m keel.cli.reference`."""

import sys
from itertools import groupby

from keel.cli import declared_commands, load_command


def render() -> str:
    """Every command with its arguments, as `keel COMMAND --help` prints them."""
    lines = ["# Commands", "", "Written by `python -m keel.cli.reference`."]
    for group, commands in groupby(declared_commands().items(), lambda item: item[1].group):
        lines += ["", f"## {group.capitalize()}"]
        for verb, _ in commands:
            help = load_command(verb).flags(verb).format_help()
            lines += ["", f"### keel {verb}", "", "```text", help.rstrip(), "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
