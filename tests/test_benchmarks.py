"""Benchmarks and recipes use names that exist; they are not run."""

import ast
import importlib
import importlib.util
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmark_imports_exist(path: Path) -> None:
    """Every name of keel that a benchmark imports or uses as `keel.name`, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "keel":
            _assert_names(path, node.lineno, node.module or "", [alias.name for alias in node.names])
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "keel":
            _assert_names(path, node.lineno, "keel", [node.attr])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "keel":
                    importlib.import_module(alias.name)


def _assert_names(path: Path, line: int, module: str, names: list[str]) -> None:
    owner = importlib.import_module(module)
    for name in names:
        assert hasattr(owner, name) or importlib.util.find_spec(f"{module}.{name}"), (
            f"{path.name}:{line}: {module} has no {name}"
        )


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_settings_exist(path: Path) -> None:
    """Every field of [system] and [train] is a setting, within its bounds."""
    from keel.systems import SYSTEMS
    from keel.tasks import TASKS
    from keel.training.plan import Train

    recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    system = SYSTEMS[recipe["system"].pop("name")]
    size = recipe["system"].pop("size", None)
    system(**(system.sizes[size] if size else {}) | recipe["system"])
    Train(**recipe.get("train", {}))
    assert recipe.get("task", "classify") in TASKS
