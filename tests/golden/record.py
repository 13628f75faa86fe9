"""Record the golden runs: `OMP_NUM_THREADS=1 python -m tests.golden.record [CASE ...]`, from the repository's root.

It repeats every run of tests/golden/cases.py, or the named cases only, and writes the results to
tests/golden/fingerprints.json. Record only when numbers are meant to change, and state in the commit which and why:
`git diff` of the file shows them. tests/golden/test_golden.py compares every run with this file.
"""

import json
import os
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("fingerprints.json")
DIGITS = 9


def recorded() -> dict[str, Any]:
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def plain(found: Any) -> Any:
    """The same as JSON will have it, floats by some digits."""
    if isinstance(found, dict):
        return {str(name): plain(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [plain(value) for value in found]
    return float(f"{found:.{DIGITS}g}") if isinstance(found, float) else found


def write(found: Any, indent: int = 0) -> str:
    """JSON with as much on a line as fits."""
    line = json.dumps(found, ensure_ascii=False)
    if not isinstance(found, dict | list) or len(line) + indent <= 118:
        return line
    if isinstance(found, list) and all(isinstance(value, int | float) for value in found):
        return textwrap.fill(line, 118 - indent, subsequent_indent=" " * (indent + 1))
    items = (
        [f"{json.dumps(name, ensure_ascii=False)}: {write(value, indent + 1)}" for name, value in found.items()]
        if isinstance(found, dict)
        else [write(value, indent + 1) for value in found]
    )
    space = " " * (indent + 1)
    begin, end = "{}" if isinstance(found, dict) else "[]"
    return f"{begin}\n" + ",\n".join(space + item for item in items) + f"\n{' ' * indent}{end}"


def main(names: list[str]) -> None:
    from tests.golden.cases import ALL_CASES
    from tests.golden.runs import run_case

    if unknown := set(names) - ALL_CASES.keys():
        sys.exit(f"no such case: {', '.join(sorted(unknown))}")
    before = recorded() if RECORDED.exists() else {}
    found = {name: run for name, run in before.items() if name in ALL_CASES}  # in their order: `git diff` stays small
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KEEL_CACHE"] = str(Path(folder) / "cache")
        for number, (name, case) in enumerate(ALL_CASES.items()):
            if not names or name in names:
                found[name] = plain(run_case(case, Path(folder) / str(number)))
    RECORDED.write_text(write(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
