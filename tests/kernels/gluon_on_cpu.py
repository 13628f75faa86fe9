"""Runs kernels in Gluon on a CPU: each partition of warps is a thread, and what is asynchronous on a GPU comes as late
as it may, so that whoever does not wait for it reads or writes too early, and the result is wrong. For tiny tiles.

What it cannot see: data hazards among the warps of one partition, and what Triton's compiler makes of the words.
"""

import operator
import threading
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

UNSIGNED = "32 bits without a sign, in 64"
PATIENCE = 20.0
"""Seconds after which a wait is taken for a deadlock."""


class Value:
    """A tensor in registers."""

    def __init__(self, data: Tensor):
        self.data = data
        self.type = SimpleNamespace(layout=None)

    def to(self, dtype: Any, bitcast: bool = False) -> "Value":
        if dtype == UNSIGNED:
            return Value((self.data.view(torch.int32) if bitcast else self.data).to(torch.int64) & 0xFFFFFFFF)
        if bitcast:  # of an unsigned number
            return Value((self.data - (self.data >> 31 << 32)).to(torch.int32).view(dtype))
        return Value(self.data.to(dtype))

    def __bool__(self) -> bool:
        return bool(self.data)


def raw(value: Any) -> Any:
    return value.data if isinstance(value, Value) else value


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **more: Any) -> Any:
        result = function(*map(raw, arguments), **more)
        return Value(result) if isinstance(result, Tensor) else result

    return call


for name in ["add", "sub", "mul", "truediv", "and_", "or_", "xor", "rshift", "ge", "gt", "le", "lt", "eq"]:
    one = getattr(operator, name)
    method = name.rstrip("_")
    setattr(Value, f"__{method}__", wrapped(one))
    if method in ("add", "sub", "mul", "truediv"):
        setattr(Value, f"__r{method}__", wrapped(lambda x, y, one=one: one(y, x)))
Value.__neg__ = wrapped(operator.neg)  # pyright: ignore[reportAttributeAccessIssue]


class Pointer:
    def __init__(self, memory: Tensor, offset: Any = 0):
        self.memory, self.offset = memory, offset

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.memory, self.offset + raw(offset))

    def positions(self, mask: Any) -> tuple[Tensor, Tensor]:
        offset = torch.as_tensor(self.offset)
        return offset, torch.as_tensor(raw(mask)).broadcast_to(offset.shape)


class Tiles:
    """A tensor outside, as tiles are loaded from and stored to it."""

    def __init__(self, memory: Tensor, *shape: int):
        self.memory, self.dtype, self.layout = memory, memory.dtype, None
        self.block_type = SimpleNamespace(shape=list(shape))

    def window(self, place: list[Any]) -> tuple[slice, ...]:
        return tuple(
            slice(int(raw(first)), int(raw(first)) + size)
            for first, size in zip(place, self.block_type.shape, strict=True)
        )


class Shared:
    """Fast memory: views of one tensor."""

    def __init__(self, data: Tensor):
        self.data, self.dtype = data, data.dtype

    def index(self, number: Any) -> "Shared":
        return Shared(self.data[int(raw(number))])

    def permute(self, order: tuple[int, ...]) -> "Shared":
        return Shared(self.data.permute(order))

    def load(self, layout: Any) -> Value:
        return Value(self.data.clone())

    def store(self, value: Value) -> None:
        assert value.data.dtype == self.dtype
        self.data.copy_(value.data)

    def _reinterpret(self, dtype: torch.dtype, shape: list[int], layout: Any) -> "Shared":
        return Shared(self.data.view(shape))


class Barrier:
    """Flips its phase after the given number of arrivals and all promised bytes."""

    def __init__(self):
        self.count, self.arrived, self.awaited, self.phase = 0, 0, 0, 0
        self.changed = threading.Condition()

    def init(self, count: int) -> None:
        self.count = count

    def add(self, arrivals: int, bytes: int) -> None:
        with self.changed:
            self.arrived += arrivals
            self.awaited += bytes
            assert self.arrived <= self.count, "more came than the barrier was made for"
            if self.arrived == self.count and not self.awaited:
                self.arrived, self.phase = 0, self.phase ^ 1
                self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.phase != parity, timeout=PATIENCE):
                raise TimeoutError("the barriers let nobody through")


class Barriers(list[Barrier]):
    def index(self, number: Any) -> Barrier:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self[int(raw(number))]


class Late:
    """What one thread has set going, oldest first; it happens only when it is waited for."""

    def __init__(self):
        self.threads = threading.local()

    def begin(self, action: Callable[[], None]) -> None:
        self.queue.append(action)

    def wait(self, left: int) -> None:
        while len(self.queue) > left:
            self.queue.pop(0)()

    @property
    def queue(self) -> list[Callable[[], None]]:
        if not hasattr(self.threads, "queue"):
            self.threads.queue = []
        return self.threads.queue


class Machine:
    """One program at a time."""

    def __init__(self):
        self.products, self.stores = Late(), Late()
        self.program, self.programs = 0, 1

    def run(self, kernel: Any, grid: int, *arguments: Any, others: dict[str, Any], **fixed: Any) -> None:
        """A kernel of a module, with other constants and functions in its module's place."""
        module = kernel.fn.__globals__
        world = {name: self.plain(value) for name, value in module.items()}
        world |= {"gl": self.language(), "hopper": self.hopper()}
        world |= {"tile_load": self.tile_load, "tile_store": self.tile_store}
        for name, value in module.items():
            if hasattr(value, "fn"):
                inner = value.fn
                world[name] = FunctionType(inner.__code__, world | {"tl": self.language()}, name, inner.__defaults__)
                if inner.__globals__ is module:
                    world[name] = FunctionType(inner.__code__, world, name, inner.__defaults__)
        world.update(others)
        self.programs = grid
        for self.program in range(grid):
            world[kernel.fn.__name__](*arguments, **fixed)

    @staticmethod
    def plain(value: Any) -> Any:
        return getattr(value, "value", value) if type(value).__name__ == "constexpr" else value

    def allocate(self, dtype: Any, shape: list[int], layout: Any) -> Any:
        if dtype is torch.int64:
            return Barriers([Barrier() for _ in range(shape[0])])
        return Shared(torch.full(shape, float("nan"), dtype=dtype))

    def tile_load(self, tiles: Tiles, place: list[Any], barrier: Barrier, target: Shared) -> None:
        rows, columns = tiles.window(place)
        found = tiles.memory[rows, columns]
        target.data.zero_()
        target.data[: found.shape[0], : found.shape[1]] = found
        barrier.add(0, -target.data.numel() * target.data.element_size())

    def tile_store(self, tiles: Tiles, place: list[Any], source: Shared) -> None:
        rows, columns = tiles.window(place)

        def store() -> None:
            target = tiles.memory[rows, columns]
            target.copy_(source.data[: target.shape[0], : target.shape[1]])

        self.stores.begin(store)

    def multiply(self, a: Any, b: Shared, total: Value, *, use_acc: bool = True, is_async: bool = True) -> Value:
        result = Value(torch.full_like(total.data, float("nan")))

        def work() -> None:
            product = a.data.float() @ b.data.float()
            result.data = total.data + product if use_acc else product

        self.products.begin(work)
        return result

    def multiplied(self, left: int, deps: tuple[Value, ...]) -> Any:
        self.products.wait(left)
        return deps[0] if len(deps) == 1 else deps

    def specialize(self, partitions: list[tuple[Any, tuple[Any, ...]]], warps: Any, registers: Any) -> None:
        failures: list[BaseException] = []

        def guard(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
            try:
                function(*arguments)
                assert not self.products.queue, "products were set going and not waited for"
                assert not self.stores.queue, "stores were set going and not waited for"
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=guard, args=each) for each in partitions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def hopper(self) -> Any:
        mbarrier = SimpleNamespace(
            MBarrierLayout=lambda: None,
            init=lambda barrier, count: barrier.init(count),
            expect=lambda barrier, bytes: barrier.add(1, bytes),
            arrive=lambda barrier, count=1, pred=True: raw(pred) and barrier.add(count, 0),
            wait=lambda barrier, parity: barrier.wait(int(raw(parity))),
        )
        return SimpleNamespace(
            mbarrier=mbarrier,
            tma=SimpleNamespace(store_wait=self.stores.wait),
            fence_async_shared=lambda: None,
            warpgroup_mma=self.multiply,
            warpgroup_mma_wait=self.multiplied,
        )

    def language(self) -> Any:
        def load(pointer: Pointer, mask: Any = True, other: Any = 0) -> Any:
            offset, there = pointer.positions(mask)
            found = pointer.memory.flatten()[torch.where(there, offset, 0)]
            found = torch.where(there, found, torch.as_tensor(other, dtype=found.dtype))
            return Value(found)

        def store(pointer: Pointer, value: Value, mask: Any = True) -> None:
            offset, there = pointer.positions(mask)
            pointer.memory.flatten()[offset[there]] = value.data.to(pointer.memory.dtype)[there]

        def split(value: Value) -> tuple[Value, Value]:
            return Value(value.data[..., 0]), Value(value.data[..., 1])

        def where(condition: Any, one: Any, other: Any) -> Any:
            if not isinstance(condition, Value):
                return one if condition else other
            return Value(torch.where(condition.data, raw(one), raw(other)))

        both = {
            "program_id": lambda axis: self.program,
            "num_programs": lambda axis: self.programs,
            "cdiv": lambda x, y: -(-x // y) if x > 0 else 0,
            "static_range": range,
            "warp_specialize": self.specialize,
            "allocate_shared_memory": self.allocate,
            "load": load,
            "store": store,
            "split": split,
            "where": where,
            "constexpr": int,
            "zeros": lambda shape, dtype, layout=None: Value(torch.zeros(shape, dtype=dtype)),
            "arange": lambda first, last, layout: Value(torch.arange(first, last)),
            "to_tensor": lambda number: Value(torch.tensor(number)),
            "sum": wrapped(torch.sum),
            "max": wrapped(torch.amax),
            "maximum": wrapped(lambda x, y: x.clamp(min=y)),
            "abs": wrapped(torch.abs),
            "exp2": wrapped(torch.exp2),
            "log2": wrapped(torch.log2),
            "rsqrt": wrapped(torch.rsqrt),
            "expand_dims": wrapped(torch.unsqueeze),
            "permute": wrapped(torch.permute),
            "reshape": wrapped(torch.reshape),
            "convert_layout": lambda value, layout: value,
            "cast": wrapped(lambda value, dtype: torch.as_tensor(value).to(dtype)),
            "float32": torch.float32,
            "int32": torch.int32,
            "int64": torch.int64,
            "uint32": UNSIGNED,
        }
        layouts = dict.fromkeys(
            ("NVMMADistributedLayout", "NVMMASharedLayout", "SliceLayout", "DotOperandLayout"), lambda *_, **__: None
        )
        return SimpleNamespace(**both, **layouts)
