"""Keel: pre-train on your own text, fine-tune on your own labels, look inside."""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"


def _exported_by(path: Path, own: str) -> dict[str, str]:
    """The module of each name that module `own` exports, by the rules of type checkers: `import x as x`, `__all__`."""
    found: dict[str, str] = {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        match statement:
            case ast.ImportFrom(module=str(module), names=[ast.alias(name="*")]):
                file = path.parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
                found |= _exported_by(file if file.exists() else file.with_suffix("") / "__init__.py", module)
            case ast.ImportFrom(module=str(module), names=names):
                found |= {each.name: module for each in names if each.name == each.asname}
            case ast.Assign(targets=[ast.Name(id="__all__")], value=names):
                found |= dict.fromkeys(ast.literal_eval(names), own)
    return found


_MODULES = _exported_by(Path(__file__).with_suffix(".pyi"), __name__)
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `import keel` alone does not load torch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'keel' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
