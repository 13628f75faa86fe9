"""`keel/__init__.pyi` declares the public names once, for type checkers and for the lazy imports of `keel`."""

import subprocess
import sys

import pytest

import keel
from keel.systems import SYSTEMS


def test_every_public_name_can_be_imported() -> None:
    names = set(dir(keel)) - {"__version__"}
    assert {"pretrain", "Model", "Train"} <= names
    for name in names:
        assert getattr(keel, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = keel.nothing  # pyright: ignore[reportAttributeAccessIssue]


def test_every_system_is_public() -> None:
    for system in SYSTEMS.values():
        assert getattr(keel, system.__name__) is system


def test_import_does_not_load_torch() -> None:
    code = "import keel, sys; dir(keel); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
