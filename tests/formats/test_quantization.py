"""Quantised weights: the error of rounding, and what is not quantised."""

import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from keel.errors import KeelError
from keel.formats.model_folder import read_tensors, write_tensors
from keel.formats.quantization import CODES, LEAST_SIZE, STEPS_PER_RMS, dequantize, quantize


def matrices() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    rows = torch.randn(200, 96) * torch.logspace(-4, 2, 200)[:, None]
    rows[3] = 0
    rows[4, 0] = 1e4  # one weight far above the others of its row
    return {"rows": rows, "bias": torch.randn(96), "small": torch.randn(8, 8)}


def test_each_weight_is_rounded_to_a_multiple_of_its_rows_step() -> None:
    given = matrices()
    found = dequantize(quantize(given))
    assert found.keys() == given.keys()
    rows, error = given["rows"], (found["rows"] - given["rows"]).abs().amax(1)
    step = torch.maximum(rows.square().mean(1).sqrt() / STEPS_PER_RMS, rows.abs().amax(1) / 127)
    assert (error <= step * 0.5001).all()
    assert found["rows"][3].eq(0).all()
    assert torch.equal(found["bias"], given["bias"])
    assert torch.equal(found["small"], given["small"]), "small matrices stay as they are"


def test_about_six_bits_per_weight() -> None:
    torch.manual_seed(0)
    packed = quantize({"rows": torch.randn(500, 400)})
    bits = packed["rows" + CODES].numel() * 8 / 200_000
    assert 5.9 < bits < 6.3, "a normal distribution has 2.05 + log2(16) bits per step"


def test_a_file_is_read_back_as_matrices_of_fp32(tmp_path: Path) -> None:
    path, given = tmp_path / "weights.safetensors", matrices()
    write_tensors(path, given, steps_per_rms=STEPS_PER_RMS)
    assert path.stat().st_size < given["rows"].nbytes / 3
    found = read_tensors(path)
    assert found["rows"].dtype == torch.float32
    assert torch.equal(found["rows"], dequantize(quantize(given))["rows"])
    assert given["rows"].numel() > LEAST_SIZE


def test_matrices_of_one_value_are_read_and_others_that_expand_are_refused() -> None:
    zeros = quantize({"rows": torch.zeros(2000, 1000)})
    assert dequantize(zeros)["rows"].eq(0).all()
    bomb = bytearray(zlib.compress(bytes(1 << 24)))  # by repetition, not by Huffman codes alone: a thousandth
    with pytest.raises(ValueError, match="too many"):
        dequantize({"rows.codes": torch.frombuffer(bomb, dtype=torch.uint8), "rows.steps": torch.ones(1 << 12)})


@pytest.mark.parametrize("change", ["codes", "steps"])
def test_integers_that_do_not_fit_are_refused(tmp_path: Path, change: str) -> None:
    packed = quantize(matrices())
    packed[f"rows.{change}"] = packed[f"rows.{change}"][:-3]
    path = tmp_path / "weights.safetensors"
    save_file(packed, path, {"quantized": "true"})
    with pytest.raises(KeelError, match="damaged quantised weights: download or copy the file again"):
        read_tensors(path)
