"""Quantised weights: each row of a matrix in multiples of its own step, entropy-coded, in about six bits per weight.

A row with root mean square r has the step r/16 (larger if that needs more than a byte), so rounding changes its weights
by about 2% of r; for word vectors r/4 is fine enough, in four bits. The integers are coded by zlib's Huffman codes:
near their entropy, and fast to read.
"""

import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

STEPS_PER_RMS = 16
CODES, STEPS = ".codes", ".steps"
"""Suffixes of the names of a quantised matrix's integers and steps."""
LEAST_SIZE = 4096
"""Elements of the smallest matrix that is quantised."""
DAMAGED = (zlib.error, ValueError, KeyError)
"""What `dequantize` raises if the integers do not fit the steps."""


def quantize(tensors: Mapping[str, Tensor], steps_per_rms: float = STEPS_PER_RMS) -> dict[str, Tensor]:
    """Replace each large matrix by its integers, compressed, and the step of each row; the others stay."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or tensor.numel() < LEAST_SIZE or not tensor.is_floating_point():
            found[name] = tensor
            continue
        rows = tensor.detach().float().cpu()
        steps = torch.maximum(rows.square().mean(1).sqrt() / steps_per_rms, rows.abs().amax(1) / 127)
        steps = steps.clamp_min(torch.finfo(torch.float32).tiny)
        codes = (rows / steps[:, None]).round().to(torch.int8)
        coder = zlib.compressobj(9, strategy=zlib.Z_HUFFMAN_ONLY)
        packed = coder.compress(codes.numpy().tobytes()) + coder.flush()
        found |= {name + CODES: torch.frombuffer(bytearray(packed), dtype=torch.uint8), name + STEPS: steps}
    return found


def dequantize(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The matrices of quantised tensors, and all others unchanged."""

    def matrix(name: str) -> Tensor:
        steps, packed = tensors[name + STEPS], tensors[name + CODES]
        decoder = zlib.decompressobj()
        # A Huffman code has a bit or more: what decodes to more bytes was not written by `quantize`.
        codes = np.frombuffer(decoder.decompress(packed.numpy().data, 8 * len(packed)), dtype=np.int8)
        if not decoder.eof:
            raise ValueError(f"the integers of {name} are incomplete, or too many")
        return torch.from_numpy(codes.reshape(len(steps), -1) * steps.numpy()[:, None])

    names = [name.removesuffix(CODES) for name in tensors if name.endswith(CODES)]
    with ThreadPoolExecutor() as pool:  # zlib and NumPy release the interpreter's lock
        matrices = dict(zip(names, pool.map(matrix, names), strict=True))
    return matrices | {name: tensor for name, tensor in tensors.items() if not name.endswith((CODES, STEPS))}
