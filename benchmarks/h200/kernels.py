"""Keel's kernels on one GPU: each is checked against its twin in float32, then timed beside what torch offers.

    PYTHONPATH=src python benchmarks/h200/kernels.py            # the table
    PYTHONPATH=src python benchmarks/h200/kernels.py --sweep    # also every way to cut the work, which `tiling` fixes

Times are medians of replayed CUDA graphs, in ms: a forward pass, and forward and backward less that.
"""

import argparse
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from keel.kernels import attention, attention_varlen, cross_entropy, feed_forward, gelu, layer_norm
from keel.kernels.attention_varlen import PackedSpans
from keel.kernels.dropout import HashDropout

BF16 = torch.bfloat16
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # torch wants it for deterministic algorithms


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kernel at one shape. `build(size)` gives its inputs, the share `size` of their rows."""

    name: str
    module: ModuleType
    build: Callable[[float], list[Tensor]]
    ours: Callable[..., Tensor]
    twin: Callable[..., Tensor]
    peers: dict[str, Callable[..., Tensor]]
    sweep: tuple[list[tuple[int, ...]], list[tuple[int, ...]]]
    """Tilings to try, of the forward and of the backward pass."""
    floor: tuple[float, ...]
    """Milliseconds that each pass must take at least."""


def moved(*gigabytes: float) -> tuple[float, ...]:
    """At the 4.3 TB/s that a copy reaches."""
    return tuple(amount / 4.3 for amount in gigabytes)


def random_tensor(*shape: int, dtype: torch.dtype = BF16, scale: float = 1.0, about: float = 0.0) -> Tensor:
    return (about + scale * torch.randn(shape, device="cuda")).to(dtype).requires_grad_()


def norm_case(rows: int, width: int, dropout: float) -> Case:
    hashed = HashDropout(dropout, torch.tensor(1, device="cuda"))

    def build(size: float) -> list[Tensor]:
        tokens = int(rows * size)
        parameter = partial(random_tensor, width, dtype=torch.float32, scale=0.1)
        return [
            random_tensor(tokens, width),
            random_tensor(tokens, width),
            parameter(),
            parameter(about=1),
            parameter(),
        ]

    def plain(x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        total = x + F.dropout(y + bias.to(y.dtype), dropout)
        return F.layer_norm(total.float(), (width,), weight, shift, 1e-12).to(y.dtype)

    def run(
        function: Callable[..., Tensor], x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, shift: Tensor
    ) -> Tensor:
        return function(x, y, bias, SimpleNamespace(weight=weight, bias=shift, eps=1e-12), hashed)

    one = rows * width * 2e-9
    return Case(
        name=f"norm {rows}x{width} p={dropout}",
        module=layer_norm,
        build=build,
        ours=partial(run, layer_norm.add_norm),
        twin=partial(run, layer_norm.add_norm_twin),
        peers={"compiled": torch.compile(plain, dynamic=False)},
        sweep=(
            list(itertools.product((1, 2), (width // 192,), (8, 16, 32), (1, 2))),
            list(itertools.product((1, 2), (width // 192,), (3, 4, 6, 8), (1, 2))),
        ),
        floor=moved(3 * one, (4 if dropout else 3) * one),
    )


def gelu_case(rows: int, width: int, tanh: bool) -> Case:
    def plain(h: Tensor, bias: Tensor) -> Tensor:
        return F.gelu(h + bias.to(h.dtype), approximate="tanh" if tanh else "none")

    one = rows * width * 2e-9
    return Case(
        name=f"gelu {rows}x{width} {'tanh' if tanh else 'exact'}",
        module=gelu,
        build=lambda size: [random_tensor(int(rows * size), width), random_tensor(width, dtype=torch.float32)],
        ours=partial(gelu.bias_gelu, tanh=tanh),
        twin=partial(gelu.bias_gelu_twin, tanh=tanh),
        peers={"compiled": torch.compile(plain, dynamic=False)},
        sweep=(
            list(itertools.product((512, 1024), (2, 4), (4,), (8, 16), (1, 2))),
            list(itertools.product((512, 1024), (2, 4), (4,), (4, 8), (1, 2))),
        ),
        floor=moved(2 * one, 3 * one),
    )


def feed_forward_case(rows: int, width: int, hidden: int) -> Case:
    def plain(x: Tensor, expand: Tensor, bias: Tensor, contract: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(x, expand, bias.to(x.dtype))), contract)

    def separate(*given: Tensor) -> Tensor:
        return feed_forward.feed_forward_twin(*given)[0]

    product = 2 * rows * width * hidden / 790e9  # ms
    return Case(
        name=f"feed forward {rows}x{width}x{hidden}",
        module=feed_forward,
        build=lambda size: [
            random_tensor(int(rows * size), width),
            random_tensor(hidden, width, scale=0.04),
            random_tensor(hidden, dtype=torch.float32, scale=0.1),
            random_tensor(width, hidden, scale=0.04),
        ],
        ours=lambda *given: feed_forward.feed_forward(*given)[0],
        twin=separate,
        peers={"apart": separate, "compiled": torch.compile(plain, dynamic=False)},
        sweep=([], []),
        floor=(2 * product, 4 * product),
    )


def loss_case(rows: int, columns: int, width: int) -> Case:
    def build(size: float) -> list[Tensor]:
        return [random_tensor(int(rows * size), width), torch.randint(columns, (int(rows * size),), device="cuda")]

    def plain(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :columns].float(), targets, reduction="none")

    one = rows * width * 2e-9
    return Case(
        name=f"loss {rows}x{columns}",
        module=cross_entropy,
        build=build,
        ours=partial(cross_entropy.cross_entropy, columns=columns),
        twin=partial(cross_entropy.cross_entropy_twin, columns=columns),
        peers={"compiled": torch.compile(plain, dynamic=False)},
        sweep=(
            [(4096, 2), (8192, 4), (16384, 4), (16384, 8), (32768, 8), (32768, 16)],
            [(4096, 8), (8192, 8), (8192, 16), (16384, 16), (32768, 16)],
        ),
        floor=moved(one, 2 * one),
    )


def attention_case(
    rows: int, heads: int, time: int, dropout: float, *, causal: bool = False, packed: bool = False
) -> Case:
    """`packed`: rows of any length up to `time` lie side by side, as many tokens in all."""
    width = heads * 64

    def build(size: float) -> list[Tensor]:
        return [
            random_tensor(max(1, int(rows * size)) * time, 3 * width),
            random_tensor(3 * width, dtype=torch.float32),
        ]

    @lru_cache
    def extents(tokens: int) -> tuple[PackedSpans, HashDropout]:
        starts = torch.arange(0, tokens, time, device="cuda")
        if packed:
            starts += torch.randint(time, starts.shape, device="cuda")
        ends = starts.roll(-1)
        ends[-1] = tokens
        spans = PackedSpans(starts, (ends - starts).clamp(max=time), time, uniform=not packed)
        return spans, HashDropout(dropout, torch.ones_like(starts[0]))

    def ours(function: Callable[..., Tensor], qkv: Tensor, bias: Tensor) -> Tensor:
        spans, hashed = extents(len(qkv))
        return function(qkv, bias, spans, heads=heads, dropout=hashed, causal=causal)

    def fused(backend: SDPBackend, qkv: Tensor, bias: Tensor) -> Tensor:
        """The bias counts as free, as it would be inside the product."""
        q, k, v = qkv.view(-1, time, 3, heads, 64).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal)
        return out.transpose(1, 2).reshape(len(qkv), width)

    flash, cudnn = (partial(fused, kind) for kind in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION))
    one = rows * time * width * 2e-9
    # Queries, keys, warps, stages.
    short = [(64, 128, 4, 1), (128, 128, 8, 1), (32, 128, 4, 1)], [(128, 128, 8, 1), (128, 128, 8, 2), (128, 128, 8, 3)]
    long = (
        [(128, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 3), (64, 64, 4, 4), (64, 128, 4, 2)],
        [(64, 128, 8, 1), (64, 128, 8, 2), (32, 128, 8, 1), (64, 64, 4, 1), (64, 64, 8, 1), (128, 128, 8, 1)],
    )
    return Case(
        name=f"attention {rows}x{heads}x{time} p={dropout}{' causal' if causal else ''}{' packed' if packed else ''}",
        module=attention_varlen,
        build=build,
        ours=partial(ours, attention.attend),
        twin=partial(ours, attention.attend_twin),
        peers={} if packed else {"flash": flash, "cudnn": cudnn},
        sweep=short if time <= 128 else long,
        floor=moved(4 * one, 7 * one),
    )


def cases() -> list[Case]:
    return [
        norm_case(65536, 768, 0.1),
        norm_case(65536, 768, 0.0),
        norm_case(131072, 384, 0.0),
        gelu_case(65536, 3072, tanh=False),
        gelu_case(65536, 3072, tanh=True),
        gelu_case(131072, 1536, tanh=False),
        loss_case(10240, 30522, 30528),
        feed_forward_case(131072, 768, 3072),
        feed_forward_case(262144, 384, 1536),
        attention_case(512, 12, 128, 0.1),
        attention_case(512, 12, 128, 0.0),
        attention_case(1024, 6, 128, 0.0),
        attention_case(512, 12, 128, 0.1, packed=True),
        attention_case(128, 12, 512, 0.1),
        attention_case(128, 12, 512, 0.0),
        attention_case(64, 12, 1024, 0.0, causal=True),
    ]


def gradients(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    wanted = [x for x in inputs if x.requires_grad]
    out = function(*inputs)
    torch.manual_seed(1)
    given = torch.randn(out.shape, device="cuda").to(BF16).to(out.dtype)
    return [out.detach().clone(), *torch.autograd.grad(out, wanted, given)]


def gap(case: Case) -> float:
    """The largest ||ours - twin|| / ||twin|| of the result and its gradients; the twin works in float32."""
    torch.use_deterministic_algorithms(True)  # fills every new tensor with NaN, so nothing unwritten passes
    torch.manual_seed(0)
    inputs = case.build(1 / 64)
    exact = [x.detach().float().requires_grad_() if x.requires_grad else x for x in inputs]
    ours, twin = (gradients(*pair) for pair in ((case.ours, inputs), (case.twin, exact)))
    torch.use_deterministic_algorithms(False)
    return max(((a.float() - b).norm() / b.norm()).item() for a, b in zip(ours, twin, strict=True))


def time_passes(function: Callable[..., Tensor], inputs: list[Tensor]) -> tuple[float, float]:
    from triton.testing import do_bench_cudagraph  # pyright: ignore[reportMissingImports]

    wanted = [x for x in inputs if x.requires_grad]
    with torch.no_grad():
        given = torch.randn_like(function(*inputs))

    def both() -> None:
        torch.autograd.grad(function(*inputs), wanted, given, allow_unused=True)

    torch.cuda.synchronize()  # the graphs run on another stream, which would not wait for the inputs
    forward: Any = do_bench_cudagraph(lambda: function(*inputs), rep=20, return_mode="median")
    total: Any = do_bench_cudagraph(both, rep=30, return_mode="median")
    return forward, total - forward


def with_tiling(case: Case, backward: bool, tiling: tuple[int, ...]) -> None:
    """Cut one pass of the case's kernel another way from now on."""
    original = getattr(case.module, "fixed", case.module.tiling)
    case.module.fixed = original  # pyright: ignore[reportAttributeAccessIssue]

    def chosen(*arguments: Any, backward: bool, requested: bool = backward, **more: Any) -> Any:
        return tiling if backward == requested else original(*arguments, backward=backward, **more)

    case.module.tiling = chosen  # pyright: ignore[reportAttributeAccessIssue]


def variants(number: int, case: Case) -> Iterator[tuple[int, bool, tuple[int, ...]]]:
    for backward in (False, True):
        for tiling in case.sweep[backward]:
            yield number, backward, tiling


def try_variant(variant: tuple[int, bool | str, tuple[int, ...]]) -> float | str:
    """In a process of its own: compiles, so that the timing finds it in the caches on disk, and checks."""
    number, which, tiling = variant
    case = cases()[number]
    try:
        if isinstance(which, str):
            if which != "ours":
                gradients(case.peers[which], case.build(1))
                return 0.0
        else:
            with_tiling(case, which, tiling)
        return gap(case)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"


def try_all(jobs: list[Any]) -> list[float | str]:
    with ProcessPoolExecutor(min(15, len(jobs)), mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(try_variant, jobs))


def sweep(chosen: list[int]) -> None:
    everything = cases()
    jobs = [variant for number in chosen for variant in variants(number, everything[number])]
    outcomes = try_all(jobs)
    for number in chosen:
        case = everything[number]
        inputs = case.build(1)
        best: dict[bool, list[tuple[float, str]]] = {False: [], True: []}
        for variant, outcome in zip(jobs, outcomes, strict=True):
            if variant[0] != number:
                continue
            _, backward, tiling = variant
            if isinstance(outcome, str) or not outcome < 4e-2:
                print(f"  {case.name} {backward=} {tiling}: {outcome}")
                continue
            with_tiling(case, backward, tiling)
            best[backward].append((time_passes(case.ours, inputs)[backward], f"{tiling} gap {outcome:.1e}"))
        for backward in (False, True):
            for milliseconds, text in sorted(best[backward])[:6]:
                print(f"  {case.name} {'backward' if backward else 'forward'} {milliseconds:.4f} {text}", flush=True)
        case.module.tiling = getattr(case.module, "fixed", case.module.tiling)  # pyright: ignore[reportAttributeAccessIssue]
        del inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true", help="try every tiling")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="time torch's own too")
    parser.add_argument("--cases", help="numbers of the cases to run, with commas between")
    options = parser.parse_args()
    everything = cases()
    chosen = [int(n) for n in options.cases.split(",")] if options.cases else list(range(len(everything)))
    if options.sweep:
        sweep(chosen)
    peers = [(n, name, ()) for n in chosen for name in everything[n].peers if name == "compiled" and options.peers]
    gaps = try_all([*((number, "ours", ()) for number in chosen), *peers])
    lines = []
    for case, off in zip((everything[number] for number in chosen), gaps, strict=False):
        assert isinstance(off, float), f"{case.name}: {off}"
        assert off < 4e-2, f"{case.name} is off by {off}"
        inputs = case.build(1)
        times = {"ours": time_passes(case.ours, inputs)}
        for name, peer in case.peers.items() if options.peers else ():
            try:
                times[name] = time_passes(peer, inputs)
            except Exception as error:
                print(f"  {case.name} {name}: {type(error).__name__} {str(error)[:200]}")
        lines.append(
            f"{case.name:34} floor {case.floor[0]:.3f} {case.floor[1]:.3f}  "
            + "  ".join(f"{name} {forward:.3f} {backward:.3f}" for name, (forward, backward) in times.items())
            + f"  gap {off:.0e}"
        )
        print(lines[-1], flush=True)
        del inputs
    print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
