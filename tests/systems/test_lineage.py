"""Ancestry: a system's file imports the files of its ancestors and of no other system."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import keel.systems
from keel.systems import LINEAGE, SYSTEMS
from keel.systems.family_tree import family_tree, main

FOLDER = Path(keel.systems.__file__).parent
SHARED = {"system", "capabilities", "static_vectors", "transformer_finetuning"}
"""Bases that several systems share, no systems themselves."""
PARTS = {"fasttext_classifier": "fasttext"}
"""Files that are part of a system."""


def ancestors(name: str) -> set[str]:
    return {ancestor for descendant, ancestor in LINEAGE if descendant == name}


def imported_systems(name: str) -> set[str]:
    """The modules of keel.systems that a system's file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            path = node.module.split(".")
            if path[:2] == ["keel", "systems"]:
                found |= {*path[2:3]} or {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[2] for alias in node.names if alias.name.startswith("keel.systems.")}
    return found


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_system_imports_its_ancestors_only(name: str) -> None:
    assert imported_systems(name) - SHARED - {*PARTS} == ancestors(name)
    assert all(PARTS[part] == name for part in imported_systems(name) & {*PARTS})


@pytest.mark.parametrize("name", sorted(SHARED))
def test_shared_bases_import_no_system(name: str) -> None:
    assert imported_systems(name) <= SHARED


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_system_import_its_ancestors_only(name: str) -> None:
    assert imported_systems(name) <= SHARED | ancestors(PARTS[name])


def test_every_file_is_a_system_or_a_shared_base() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")}
    assert files - {"__init__", "family_tree"} == {*SYSTEMS, *SHARED, *PARTS}


def test_systems_are_ordered_by_year() -> None:
    assert all("year" in vars(system) for system in SYSTEMS.values()), "a year is not inherited"
    years = {name: system.year for name, system in SYSTEMS.items()}
    assert sorted(years.values()) == [*years.values()]
    assert all(years[ancestor] <= years[name] for name, ancestor in LINEAGE)


def test_the_family_tree_is_printed_by_a_command() -> None:
    run = subprocess.run([sys.executable, "-m", "keel.systems.family_tree"], capture_output=True, text=True, check=True)
    assert run.stdout == family_tree()
    assert "bert[bert 2018]" in run.stdout
    assert "transformer --> gpt" in run.stdout


def test_the_family_tree_on_a_page_is_updated(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("a\n<!-- family-tree -->\n```mermaid\nold\n```\n<!-- /family-tree -->\nb\n", encoding="utf-8")
    main([str(page)])
    text = f"a\n<!-- family-tree -->\n```mermaid\n{family_tree()}```\n<!-- /family-tree -->\nb\n"
    assert page.read_text(encoding="utf-8") == text
