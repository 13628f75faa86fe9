"""Encoders in bf16 on a CPU, against their definition: each sequence alone, with the same roundings, and in fp32."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from keel.nn import bf16_inference
from keel.nn.encoder import ForwardOptions
from keel.nn.transformer_blocks import TransformerBlock
from keel.systems.bert import Bert
from keel.systems.modernbert import ModernBert
from keel.systems.transformer import EncoderStack

WIDTH, TIME = 64, 21
LENGTHS = torch.tensor([TIME, TIME, 13, 2, 2, 1])
PADDING = (torch.arange(TIME) < LENGTHS[:, None])[:, None, None]
SYSTEM = Bert(layers=3, width=WIDTH, head_dim=16, dropout=0.1, attention_dropout=0.1)


MODERN = ModernBert(layers=3, width=WIDTH, head_dim=16, global_attn_every_n_layers=2, local_attention=6)


@pytest.fixture(params=["post-norm", "pre-norm", "rotary, gated and local"])
def stack(request: pytest.FixtureRequest) -> EncoderStack:
    torch.manual_seed(0)
    if request.param == "rotary, gated and local":
        return EncoderStack.build(MODERN).eval()
    return EncoderStack.build(SYSTEM, pre_norm=request.param == "pre-norm").eval()


@pytest.fixture
def vectors() -> Tensor:
    return torch.randn(len(LENGTHS), TIME, WIDTH, generator=torch.Generator().manual_seed(1))


def in_bf16(
    stack: EncoderStack, x: Tensor, mask: Tensor | None = PADDING, query_count: int = 0, all_layers: bool = False
) -> tuple[Tensor, list[Tensor]]:
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        return stack(x, mask, ForwardOptions(all_layers=all_layers), query_count)


def tokens_of(x: Tensor) -> Iterator[Tensor]:
    return (sequence[:length] for sequence, length in zip(x, LENGTHS.tolist(), strict=True))


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def by_definition(block: TransformerBlock, x: Tensor) -> Tensor:
    """One block on one sequence [time, width]: products of rounded factors, their results rounded, the rest fp32."""

    def linear(layer: nn.Linear, x: Tensor) -> Tensor:
        product = rounded(x) @ rounded(layer.weight).T
        return rounded(product if layer.bias is None else product + rounded(layer.bias))

    def attention(x: Tensor) -> Tensor:
        q, k, v = linear(block.attention.qkv, x).unflatten(1, (3, block.attention.heads, -1)).permute(1, 2, 0, 3)
        window = block.attention.window_mask(len(x), len(x), x.device)
        weights = block.attention.weights(block.attention.add_positions(q), block.attention.add_positions(k), window)
        return linear(block.attention.out, (weights @ v).transpose(0, 1).flatten(1))

    x = block.residual(block.attention_norm, x, attention)
    return block.residual(
        block.output_norm, x, lambda x: linear(block.contract, rounded(block.activate(linear(block.expand, x))))
    )


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@torch.no_grad()
def test_output_is_that_of_the_definition_and_near_fp32(stack: EncoderStack, vectors: Tensor) -> None:
    found, layers = in_bf16(stack, vectors, all_layers=True)
    plain, _ = stack(vectors, PADDING)
    assert [layer.dtype for layer in layers] == [torch.float32] * 4
    for index, x in enumerate(tokens_of(vectors)):
        for number, block in enumerate(stack.blocks):
            x = by_definition(block, x)
            assert relative_error(layers[number + 1][index, : len(x)], x) < 2e-3
        assert relative_error(found[index, : len(x)], x) < 2e-3
        assert 1e-4 < relative_error(x, plain[index, : len(x)]) < 2e-2  # bf16 has 8 bits


def test_padding_is_zero_and_neighbours_change_nothing(stack: EncoderStack, vectors: Tensor) -> None:
    found, _ = in_bf16(stack, vectors)
    assert not found[~PADDING[:, 0, 0]].any()
    for index, x in enumerate(tokens_of(vectors)):
        alone, _ = in_bf16(stack, x[None], mask=None)
        assert relative_error(found[index, : len(x)], alone[0]) < 2e-3


@pytest.mark.parametrize("mask", [PADDING, None])
def test_first_positions_alone_are_those_of_all(stack: EncoderStack, vectors: Tensor, mask: Tensor | None) -> None:
    first, _ = in_bf16(stack, vectors, mask, query_count=1)
    found, _ = in_bf16(stack, vectors, mask)
    assert first.shape == (len(LENGTHS), 1, WIDTH)
    assert relative_error(first, found[:, :1]) < 2e-3


def test_changed_weights_are_converted_again(stack: EncoderStack, vectors: Tensor) -> None:
    before, _ = in_bf16(stack, vectors)
    again, _ = in_bf16(stack, vectors)
    assert torch.equal(before, again)
    with torch.no_grad():
        stack.blocks[0].expand.weight.mul_(2.0)
    after, _ = in_bf16(stack, vectors)
    assert relative_error(after, before) > 1e-3
    torch.testing.assert_close(after, in_bf16(stack, vectors)[0], rtol=0, atol=0)


def test_it_is_for_inference_in_bf16_only(
    stack: EncoderStack, vectors: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(bf16_inference, "run_blocks", lambda *given, **settings: calls.append(True) or (given[2], []))
    with torch.inference_mode():
        stack(vectors, PADDING)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = stack(vectors, PADDING)
    assert calls == []
    assert found.requires_grad
    in_bf16(stack, vectors)
    assert calls == [True]
