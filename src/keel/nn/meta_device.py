"""Networks without weights: shapes to load weights into, or to count."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

RANDOM = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.trunc_normal_, nn.init.uniform_)


@contextmanager
def meta_device() -> Iterator[None]:
    """New tensors have no memory, and random initialisation does nothing.

    On the meta device torch decomposes `normal_` in Python, which imports its compiler: two seconds per process.
    """
    with torch.device("meta"), _NoRandomInitialisation():
        yield


def count_parameters(build: Callable[[], nn.Module]) -> int:
    """Parameters of the network that `build` makes, each tied weight once; nothing is allocated."""
    with meta_device():
        network = build()
    return sum(weight.numel() for weight in network.parameters())


class _NoRandomInitialisation(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensor = args[0] if args else (kwargs or {}).get("tensor")  # torch.nn.init passes it by name
        if func in RANDOM and isinstance(tensor, Tensor) and tensor.is_meta:
            return tensor
        return func(*args, **(kwargs or {}))
