"""Recording of tensors while a network runs: by hooks on its modules, and at torch's attention function."""

from collections.abc import Callable, Sequence
from threading import get_ident
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from keel.explain.trace.tensor_trace import TensorKind, TracedTensor
from keel.nn.multihead_attention import MultiHeadAttention

Record = TensorKind | Callable[[Any], object] | None
"""The kind under which a tensor is recorded, or what is called with the value."""


class AttentionCall(NamedTuple):
    """What a network attends with."""

    query: Tensor  # [batch, heads, queries, head_dim]
    key: Tensor  # [batch, heads, keys, head_dim]
    value: Tensor
    mask: Tensor | None  # True where attention is allowed

    def scores(self) -> Tensor:
        """[batch, heads, queries, keys] q k^T / sqrt(d), minus infinity where it is masked."""
        scores = self.query @ self.key.transpose(-1, -2) / self.query.shape[-1] ** 0.5
        return scores if self.mask is None else scores.masked_fill(~self.mask, -torch.inf)


class TensorRecorder(TorchFunctionMode):
    """Records the tensors of a forward pass within a with statement, in the order in which they are computed.

    The network runs unchanged. Another thread may use it at the same time, so only this thread's tensors are recorded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._recorded: list[TracedTensor] = []
        self._latest: dict[tuple[str, int], TracedTensor] = {}
        self._hooks: list[Callable[[], object]] = []
        self._thread = get_ident()
        self._call: AttentionCall | None = None

    def __call__(self, name: str, layer: int, value: Tensor) -> None:
        """As a `Recorder` it selects the eager path of a network, and ignores what it gets."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func is F.scaled_dot_product_attention:
            query, key, value = args[:3]
            mask = named.get("attn_mask")
            if named.get("is_causal"):
                mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
            self._call = AttentionCall(query, key, value, mask)
        return func(*args, **named)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove_hooks()
        super().__exit__(kind, error, trace)

    def remove_hooks(self) -> None:
        """Stop watching modules."""
        for remove in self._hooks:
            remove()
        self._hooks.clear()

    def collect(self) -> list[TracedTensor]:
        """The tensors that were recorded since the last call."""
        found, self._recorded = self._recorded, []
        return found

    def __len__(self) -> int:
        """Tensors that were recorded since the last `collect`."""
        return len(self._recorded)

    def has(self, kind: TensorKind) -> bool:
        """Whether a tensor of this kind was recorded since the last `collect`."""
        return any(tensor.kind is kind for tensor in self._recorded)

    def add(
        self, kind: TensorKind, value: Tensor, layer: int = 0, sources: Sequence[TracedTensor] = ()
    ) -> TracedTensor:
        """Record a tensor; by default its sources are the latest of their names, of its own layer or of none."""
        assert value.dim() == len(kind.axes), f"{kind.name}: {tuple(value.shape)} is not {kind.axes}"
        value = value.detach().cpu()
        whole = value.dtype in (torch.int64, torch.int32)
        values = (value if whole else value.float()).numpy().copy()  # caches change
        found = (self._latest.get((name, layer)) or self._latest.get((name, 0)) for name in kind.sources)
        known = sources or [source for source in found if source is not None]
        tensor = TracedTensor(kind=kind, values=values, layer=layer, sources=tuple(known))
        self._recorded.append(tensor)
        self._latest[kind.name, layer] = tensor
        if kind.stream:
            self._latest["stream", 0] = tensor
        return tensor

    def watch(self, module: nn.Module, *, before: Record = None, after: Record = None, layer: int = 0) -> None:
        """Record a module's first input, and its output."""

        def record(what: Record, value: Any) -> None:
            if self._thread != get_ident():
                return
            if isinstance(what, TensorKind):
                self.add(what, value, layer)
            elif what is not None:
                what(value)

        if before is not None:
            self._hooks.append(module.register_forward_pre_hook(lambda _, args: record(before, args[0])).remove)
        if after is not None:
            self._hooks.append(module.register_forward_hook(lambda _, args, output: record(after, output)).remove)

    def watch_arguments(self, module: nn.Module, act: Callable[[tuple[Any, ...]], object]) -> None:
        """Call `act` with a module's positional inputs before it runs."""

        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            if self._thread == get_ident():
                act(inputs)

        self._hooks.append(module.register_forward_pre_hook(hook).remove)

    def watch_call(self, module: nn.Module, act: Callable[[tuple[Any, ...], Any], object]) -> None:
        """Call `act` with a module's inputs and output."""

        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if self._thread == get_ident():
                act(inputs, output)

        self._hooks.append(module.register_forward_hook(hook).remove)

    def watch_attention(self, module: MultiHeadAttention, act: Callable[[AttentionCall], object]) -> None:
        """Call `act` with what a module attends with, before the heads are mixed."""

        def attend(_: Tensor) -> None:
            call, self._call = self._call, None
            assert call is not None, "attention is computed by torch's function"
            act(call)

        self.watch(module.out, before=attend)

    def watch_all_queries(self, stack: nn.Module) -> None:
        """Let the last block compute all positions, also where only the first is needed."""

        def drop(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
            if self._thread != get_ident():
                return None
            return args, {name: value for name, value in named.items() if name != "query_count"}

        self._hooks.append(stack.register_forward_pre_hook(drop, with_kwargs=True).remove)

    def __enter__(self) -> Self:
        super().__enter__()
        return self
