"""One process or many: the only file that knows about distribution. Start several with `torchrun`, same flags."""

import atexit
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from keel.errors import UsageError
from keel.events import counted
from keel.training.objective import Objective, parts_of

Parallel = Literal["ddp", "fsdp"]


def pick_device(name: str) -> torch.device:
    """The device of that name; "auto" is the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"there is no device {name!r}: use --device cpu, cuda, cuda:1 or auto") from error
    if device.type == "cuda" and (device.index or 0) >= (found := torch.cuda.device_count()):
        what = counted(found, "GPU is", "GPUs are") if found else "no GPU is"
        raise UsageError(f"device {name!r} cannot be used, for {what} found here: use --device cpu or auto")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device {name!r} cannot be used here: use --device cpu or auto") from error
    return device


def is_main_process() -> bool:
    """Whether this process is the one that speaks and writes."""
    return int(os.environ.get("RANK", "0")) == 0


@dataclass(frozen=True)
class World:
    """Which of how many processes this is, and the device it works on."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    @contextmanager
    def join(cls, device: str) -> Iterator["World"]:
        """The processes that `torchrun` started, or this one alone."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            place = pick_device(device)
            if place.type == "cuda" and place.index is not None:
                torch.cuda.set_device(place)  # kernels and graphs work on the current one
            yield cls(0, 1, place)
            return
        on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        place = pick_device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else device)
        if on_gpu:
            torch.cuda.set_device(place)
        if not dist.is_initialized():
            # The others may wait for long while the first one learns a tokenizer and builds tokens.
            dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(days=1))
            # Not sooner: a second run's group would meet the addresses of the first and wait for ever.
            atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
        world = cls(dist.get_rank(), size, place)
        yield world
        world.barrier()  # nobody leaves while another still talks

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def part(self, rows: range, of: int = 1, number: int = 0) -> range:
        """This process's share of the rows, and the `number`-th of `of` parts of that."""
        part, parts = self.rank * of + number, self.size * of
        return rows[len(rows) * part // parts : len(rows) * (part + 1) // parts]

    @contextmanager
    def first(self) -> Iterator[None]:
        """The leading process goes through first; the others follow when it is done."""
        if not self.is_main:
            self.barrier()
        yield
        if self.is_main:
            self.barrier()

    def sum_over_processes(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def wrap(self, objective: Objective, how: Parallel) -> nn.Module:
        """What to call instead of the objective, so that gradients meet."""
        if self.size == 1:
            return objective
        if how == "ddp":
            return DistributedDataParallel(objective)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        mesh = init_device_mesh(self.device.type, (self.size,))
        for block in objective.blocks():
            fully_shard(parts_of(block), mesh=mesh)
            for way in ("fused", "remember"):  # other ways into it, which must gather its weights too
                if hasattr(block, way):
                    register_fsdp_forward_method(block, way)
        fully_shard(objective, mesh=mesh)  # in place
        return objective


def defer_gradient_sync(wrapped: nn.Module, hold: bool) -> AbstractContextManager[None]:
    """While micro-batches accumulate, gradients stay at home until the last one."""
    if synchronize := getattr(wrapped, "set_requires_gradient_sync", None):  # it is sharded
        synchronize(not hold)
    elif isinstance(wrapped, DistributedDataParallel) and hold:
        return wrapped.no_sync()
    return nullcontext()


def is_sharded(tensor: Tensor) -> bool:
    """Whether several processes hold a part of it each (a DTensor: that module alone takes sixty megabytes)."""
    return hasattr(tensor, "full_tensor")


def gather_tensor(tensor: Any) -> Tensor:
    """The tensor in one piece, wherever its parts lie (every process must ask)."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def shard_like(value: Tensor, model: Any) -> Tensor:
    """`value` placed and cut as `model` is."""
    if is_sharded(model):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value.to(model.device), model.device_mesh, model.placements)
    return value.to(model.device)
