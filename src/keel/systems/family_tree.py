"""The family tree of the systems, made of `LINEAGE`: `python -m keel.systems.family_tree` prints it."""

import sys

from keel.systems import LINEAGE, SYSTEMS, YEARS


def family_tree() -> str:
    """A Mermaid flowchart of all systems with their years, an arrow from each ancestor to its descendants."""
    nodes = [f"    {name}[{name} {YEARS[name]}]" for name in SYSTEMS]
    edges = [f"    {ancestor} --> {name}" for name, ancestor in LINEAGE]
    return "\n".join(["flowchart LR", *nodes, *edges])


if __name__ == "__main__":
    sys.stdout.write(family_tree() + "\n")
