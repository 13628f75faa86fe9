"""What the parts of every Transformer promise."""

from typing import Any

import pytest
import torch

from keel.config import help_of, to_dict
from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.nn.multihead_attention import FastDropout, MultiHeadAttention
from keel.systems import SYSTEMS
from keel.systems.bert import Bert
from keel.systems.gpt import Gpt
from keel.systems.transformer import Transformer, TransformerSystem

BUILT_OF_BLOCKS = [system for system in SYSTEMS.values() if issubclass(system, TransformerSystem)]


@pytest.mark.parametrize(
    ("system", "published"),
    [
        (Transformer, (6, 512, 64, 4.0, 0.1, 0.0, "relu", 1e-5)),
        (Gpt, (12, 768, 64, 4.0, 0.1, 0.1, "gelu_tanh", 1e-5)),
        (Bert, (12, 768, 64, 4.0, 0.1, 0.1, "gelu", 1e-12)),
    ],
)
def test_each_system_has_the_shape_of_its_paper(system: type[TransformerSystem], published: tuple[Any, ...]) -> None:
    made = system()
    assert tuple(to_dict(made)[name] for name in to_dict(TransformerSystem())) == published
    assert (made.heads, made.mlp_size) == (made.width // 64, 4 * made.width)


@pytest.mark.parametrize("system", BUILT_OF_BLOCKS)
def test_every_setting_has_its_line_of_help(system: type[TransformerSystem]) -> None:
    assert [name for name in to_dict(system()) if not help_of(system).get(name)] == []
    assert help_of(system)["layers"] == ("Number of encoder blocks." if system is Transformer else "Number of blocks.")


@pytest.mark.parametrize("system", BUILT_OF_BLOCKS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, "layers must be 1 or more and 1,000 or less, not 0"),
        ({"head_dim": 0}, "head_dim must be 1 or more"),
        ({"attention_dropout": 1.0}, "attention_dropout must be 0 or more and below 1"),
        ({"norm_epsilon": 0.0}, "norm_epsilon must be above 0"),
        ({"width": 100}, "width=100 is not a multiple of"),
    ],
)
def test_stacks_that_cannot_be_are_refused(
    system: type[TransformerSystem], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        system(**settings)


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    dropout = FastDropout(0.1).train()
    x = torch.ones(401, 999, requires_grad=True)
    torch.manual_seed(0)
    y = dropout(x)
    assert abs(float((y == 0).float().mean()) - 0.1) < 5 * (0.1 * 0.9 / x.numel()) ** 0.5
    assert set(y.detach().unique().tolist()) == {0.0, float(torch.tensor(1 / 0.9))}
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


def test_dropout_depends_on_the_seed_and_is_off_outside_training() -> None:
    dropout = FastDropout(0.5).train()
    x = torch.randn(7, 5, 3)
    torch.manual_seed(1)
    first = dropout(x)
    second = dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)
    assert torch.equal(dropout.eval()(x), x)


def test_causal_attention_refuses_the_first_queries_only() -> None:
    with pytest.raises(AssertionError, match="the last positions"):
        MultiHeadAttention(8, 2, 0.0, causal=True)(torch.zeros(1, 3, 8), None, query_count=1)


def test_pooled_features_equal_those_of_the_whole_output() -> None:
    torch.manual_seed(0)
    encoder = Bert(layers=3, width=64, head_dim=16, max_positions=32, sequence_length=32).build_encoder(100).eval()
    rows = TokenBatch.pad([[1, *range(5, 5 + length)] for length in (3, 9, 20)])
    whole, short = encoder.pool_features(encoder(rows), rows), encoder.pooled_features(rows)
    torch.testing.assert_close(short, whole, rtol=1e-5, atol=1e-6)
    expected = torch.autograd.grad(whole.square().sum(), list(encoder.stack.parameters()))
    found = torch.autograd.grad(short.square().sum(), list(encoder.stack.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
