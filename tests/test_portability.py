"""`import keel` works without the Unix-only modules `fcntl` and `resource`: filelock locks folders instead."""

import subprocess
import sys

CODE = """
import sys
sys.modules["fcntl"] = sys.modules["resource"] = None  # importing them now fails
import keel, keel.api, keel.cli, keel.api.pretraining, keel.api.finetuning, keel.api.run_folder
import keel.training.checkpoint, keel.data.token_store
"""


def test_import_needs_neither_fcntl_nor_resource() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
