"""Building a network without weights does not import torch's compiler, which takes seconds."""

import subprocess
import sys

BUILD = """
import sys
from keel.nn.meta_device import meta_device
from keel.systems import SYSTEMS
with meta_device():
    for kind in SYSTEMS.values():
        encoder = kind().build_encoder(100)
        assert all(weight.is_meta for weight in encoder.parameters())
print("sympy" in sys.modules)
"""


def test_no_compiler_is_imported() -> None:
    run = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
