import subprocess
import sys

import torch

from keel.kernels import triton_usable

WITHOUT = """
import sys
sys.modules["triton"] = None
import torch
from keel.kernels import triton_usable
from keel.kernels.attention import attend
from keel.kernels.attention_varlen import PackedSpans
from keel.kernels.dropout import HashDropout
from keel.kernels.gelu import bias_gelu
from keel.kernels.cross_entropy import cross_entropy
from keel.kernels.layer_norm import add_norm
x = torch.randn(6, 48, requires_grad=True)
row = torch.zeros(48)
assert not triton_usable(x)
dropout = HashDropout(0.1, torch.tensor(1))
mixed = attend(x, row, PackedSpans(torch.tensor([0]), torch.tensor([6]), 6), heads=2, dropout=dropout)
normed = add_norm(mixed, bias_gelu(mixed, row[:16]), row[:16], torch.nn.LayerNorm(16), dropout)
cross_entropy(normed + mixed, torch.arange(6), 16).sum().backward()
assert x.grad.abs().sum() > 0
"""


def test_the_twins_run_without_triton():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_numbers_of_other_types_are_left_to_the_twins():
    assert not triton_usable(torch.zeros(2, dtype=torch.float64))
    assert not triton_usable(torch.zeros(2, dtype=torch.int64))
