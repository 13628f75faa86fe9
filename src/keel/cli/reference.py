"""The reference page of all commands, in Markdown: `python -m keel.cli.reference`."""

import sys

from keel.cli import SUMMARIES, load_command


def render() -> str:
    """Every command with its arguments, as `keel COMMAND --help` prints them."""
    lines = ["# Commands", "", "Written by `python -m keel.cli.reference`."]
    for group, verbs in SUMMARIES.items():
        lines += ["", f"## {group.capitalize()}"]
        for verb, summary in verbs.items():
            help = load_command(verb).flags(verb, summary).format_help()
            lines += ["", f"### keel {verb}", "", "```text", help.rstrip(), "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
