"""Data parallelism (DDP, FSDP2): the only file that knows about several processes, which `torchrun` starts."""

import atexit
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from keel.errors import UsageError
from keel.events import pluralize
from keel.training.objective import Objective, parts_of

Parallel = Literal["ddp", "fsdp"]


def pick_device(name: str) -> torch.device:
    """The device of this name; "auto": the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"there is no device {name!r}: use --device cpu, cuda, cuda:1 or auto") from error
    if device.type == "cuda" and (device.index or 0) >= (found := torch.cuda.device_count()):
        what = pluralize(found, "GPU") if found else "no GPU"
        raise UsageError(f"there is no device {name!r}: this machine has {what}; use --device cpu or auto")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device {name!r} cannot be used here: use --device cpu or auto") from error
    return device


def is_main_process() -> bool:
    """Whether this process (rank 0) writes files and messages."""
    return int(os.environ.get("RANK", "0")) == 0


@dataclass(frozen=True)
class World:
    """Rank of this process, number of processes, and the device of this one."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    @contextmanager
    def join(cls, device: str) -> Iterator["World"]:
        """Join the process group that `torchrun` started, or be a group of one."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        place = pick_device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu and size > 1 else device)
        if place.type == "cuda" and place.index is not None:
            torch.cuda.set_device(place)  # kernels and graphs work on the current one
        if size == 1:
            yield cls(0, 1, place)
            return
        if not dist.is_initialized():
            # The others may wait long while rank 0 trains a tokenizer and encodes the corpus.
            dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(days=1))
            # Not earlier: the group of a second run would find the addresses of the first and hang.
            atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
        world = cls(dist.get_rank(), size, place)
        yield world
        world.barrier()  # no process leaves while another still communicates

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def micro_batches(self, batch_size: int, count: int) -> list[range]:
        """Examples of each of the `count` micro-batches of this process; some are empty if the batch is small."""
        numbers = range(self.rank * count, (self.rank + 1) * count + 1)
        return [range(*bounds) for bounds in pairwise(batch_size * n // (self.size * count) for n in numbers)]

    @contextmanager
    def first(self) -> Iterator[None]:
        """Run the block on rank 0 first; the others follow when it is done."""
        if not self.is_main:
            self.barrier()
        yield
        if self.is_main:
            self.barrier()

    def sum_over_processes(self, values: Tensor) -> Tensor:
        """All-reduce: the sum over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def wrap(self, objective: Objective, strategy: Parallel) -> nn.Module:
        """Wrap the objective so that processes exchange gradients."""
        if self.size == 1:
            return objective
        if strategy == "ddp":
            return DistributedDataParallel(objective)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        mesh = init_device_mesh(self.device.type, (self.size,))
        for block in objective.blocks():
            fully_shard(parts_of(block), mesh=mesh)
            for method in ("fused", "project_memory"):  # also called instead of forward: must gather the weights too
                if hasattr(block, method):
                    register_fsdp_forward_method(block, method)
        fully_shard(objective, mesh=mesh)  # in place
        return objective


def defer_gradient_sync(wrapped: nn.Module, hold: bool) -> AbstractContextManager[None]:
    """Exchange gradients only at the last micro-batch of a step."""
    if synchronize := getattr(wrapped, "set_requires_gradient_sync", None):  # it is sharded
        synchronize(not hold)
    elif isinstance(wrapped, DistributedDataParallel) and hold:
        return wrapped.no_sync()
    return nullcontext()


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor (importing that class would cost 60 MB)."""
    return hasattr(tensor, "full_tensor")


def gather_tensor(tensor: Any) -> Tensor:
    """The full tensor of a sharded one (a collective operation)."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def copy_to_cpu(value: Tensor) -> Tensor:
    """Copy to the CPU, as training continues to change `value`; pinned memory is fast to copy to."""
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda).copy_(value)


def shard_like(value: Tensor, model: Any) -> Tensor:
    """`value` on the device of `model`, and sharded like it."""
    if is_sharded(model):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value.to(model.device), model.device_mesh, model.placements)
    return value.to(model.device)
