"""The reference page of all commands, in Markdown: `python -m keel.cli.reference`."""

import sys

from keel.cli import GROUPS, load_command
from keel.cli.flags import Flags


def render() -> str:
    """Every command with its arguments, as `keel COMMAND --help` prints them."""
    lines = ["# Commands", "", "Written by `python -m keel.cli.reference`."]
    for group, verbs in GROUPS.items():
        lines += ["", f"## {group.capitalize()}"]
        for name, verb in verbs.items():
            flags = Flags(name, verb.usage, verb.summary)
            load_command(name).add_flags(flags)
            lines += ["", f"### keel {name}", "", "```text", flags.format_help().rstrip(), "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
