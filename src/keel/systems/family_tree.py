"""The family tree of the systems, made of `LINEAGE`.

`python -m keel.systems.family_tree` prints it; `python -m keel.systems.family_tree README.md` updates it on that page.
"""

import re
import sys
from pathlib import Path

from keel.systems import LINEAGE, SYSTEMS

SHOWN = re.compile(r"(?<=<!-- family-tree -->\n```mermaid\n).*?(?=```\n<!-- /family-tree -->)", re.DOTALL)
"""The tree on a page."""


def family_tree() -> str:
    """A Mermaid flowchart of all systems with their years, an arrow from each ancestor to its descendants."""
    nodes = [f"    {name}[{name} {system.year}]\n" for name, system in SYSTEMS.items()]
    edges = [f"    {ancestor} --> {name}\n" for name, ancestor in LINEAGE]
    return "".join(["flowchart LR\n", *nodes, *edges])


def main(pages: list[str]) -> None:
    """Update the tree on each page, or print it."""
    for page in map(Path, pages):
        page.write_text(SHOWN.sub(family_tree(), page.read_text(encoding="utf-8")), encoding="utf-8")
    if not pages:
        sys.stdout.write(family_tree())


if __name__ == "__main__":
    main(sys.argv[1:])
