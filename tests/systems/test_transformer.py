"""The encoder-decoder is torch's own given the same weights, and writes step by step what it writes at once."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from keel.data.token_batch import TokenBatch
from keel.errors import KeelError, UsageError
from keel.nn.kv_cache import KVCache
from keel.nn.multihead_attention import MultiHeadAttention
from keel.systems.transformer import (
    EncoderMemory,
    Transformer,
    TransformerDecoder,
    TransformerEncoder,
    sinusoidal_positions,
)

SMALL = Transformer(layers=2, decoder_layers=3, width=32, head_dim=8, dropout=0.0, max_positions=32)
SOURCE, TARGET = [[5, 6, 7, 8, 9, 3], [10, 11, 3], [12, 3]], [[1, 4, 5, 6, 7], [1, 8, 9, 10, 11], [1, 12, 13, 14, 15]]


def build_networks(
    system: Transformer = SMALL, target: int = 30, *, shared: bool = False
) -> tuple[TransformerEncoder, TransformerDecoder]:
    torch.manual_seed(0)
    encoder = system.build_encoder(40).eval()
    decoder = system.build_decoder(encoder, target, shared_vocabulary=shared).eval()
    for name, weight in [*encoder.named_parameters(), *decoder.named_parameters()]:
        if weight.ndim == 1:  # zeros and ones would hide that one is taken for another
            nn.init.uniform_(weight, 0.5 if name.endswith("weight") else -0.5, 1.5 if name.endswith("weight") else 0.5)
    return encoder, decoder


def read(encoder: TransformerEncoder, decoder: TransformerDecoder, source: list[list[int]] = SOURCE) -> EncoderMemory:
    rows = TokenBatch.pad(source)
    return decoder.project_source(encoder(rows), rows)


def peer(system: Transformer, encoder: TransformerEncoder, decoder: TransformerDecoder) -> nn.Transformer:
    """Torch's network with the same weights; by itself it would end in a norm where post-norm has one already."""
    common: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": system.pre_norm}
    shape = system.width, system.heads, system.mlp_size
    theirs = nn.Transformer(
        d_model=system.width,
        nhead=system.heads,
        custom_encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*shape, **common),
            system.layers,
            nn.LayerNorm(system.width) if system.pre_norm else None,
            enable_nested_tensor=False,
        ),
        custom_decoder=nn.TransformerDecoder(
            nn.TransformerDecoderLayer(*shape, **common),
            system.decoder_layers,
            nn.LayerNorm(system.width) if system.pre_norm else None,
        ),
        batch_first=True,
    )
    names = {
        "attention.qkv.": "self_attn.in_proj_",
        "attention.out.": "self_attn.out_proj.",
        "cross.qkv.": "multihead_attn.in_proj_",
        "cross.out.": "multihead_attn.out_proj.",
        "expand.": "linear1.",
        "contract.": "linear2.",
        "attention_norm.": "norm1.",
    }
    sides = {
        "encoder": (encoder, {**names, "output_norm.": "norm2."}),
        "decoder": (decoder, {**names, "cross_norm.": "norm2.", "output_norm.": "norm3."}),
    }
    weights = {}
    for side, (module, table) in sides.items():
        for name, value in module.state_dict().items():
            if name.startswith("stack."):
                _, number, rest = name.split(".", 2)
                ours = next(start for start in table if rest.startswith(start))
                weights[f"{side}.layers.{number}.{table[ours]}{rest.removeprefix(ours)}"] = value.clone()
            elif name.startswith("norm."):
                weights[f"{side}.{name}"] = value.clone()
    theirs.load_state_dict(weights)
    return theirs


@pytest.mark.parametrize("pre_norm", [False, True])
def test_outputs_and_gradients_are_those_of_torch(pre_norm: bool) -> None:
    system = replace(SMALL, pre_norm=pre_norm)
    encoder, decoder = build_networks(system)
    theirs = peer(system, encoder, decoder)
    rows, ids = TokenBatch.pad(SOURCE), torch.tensor(TARGET)
    padding = torch.arange(6) >= rows.lengths[:, None]

    source = encoder.words(rows.ids).detach() * 32**0.5 + sinusoidal_positions(6, 32, torch.device("cpu"))
    target = decoder.word_embeddings()[ids].detach() * 32**0.5 + sinusoidal_positions(5, 32, torch.device("cpu"))
    expected = theirs(
        source,
        target,
        tgt_mask=~torch.ones(5, 5, dtype=torch.bool).tril(),
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )
    found, state = decoder(ids, decoder.project_source(encoder(rows), rows))
    assert state is None
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    pairs = [
        (encoder.stack[0].get_parameter("attention.qkv.weight"), "encoder.layers.0.self_attn.in_proj_weight"),
        (encoder.stack[1].get_parameter("contract.bias"), "encoder.layers.1.linear2.bias"),
        (decoder.stack[0].get_parameter("attention.qkv.bias"), "decoder.layers.0.self_attn.in_proj_bias"),
        (decoder.stack[1].get_parameter("cross.qkv.weight"), "decoder.layers.1.multihead_attn.in_proj_weight"),
        (decoder.stack[2].get_parameter("cross_norm.weight"), "decoder.layers.2.norm2.weight"),
    ]
    for ours, name in pairs:
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad, theirs.get_parameter(name).grad, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def decode_parts(
    decoder: TransformerDecoder, source: EncoderMemory, ids: Tensor, cuts: list[int]
) -> tuple[Tensor, KVCache]:
    """The vectors of ids that are handed over in parts, and the state at the end."""
    state, found = decoder.new_state(source, len(ids)), []
    for part in ids.split(cuts, 1):
        vectors, state = decoder(part, source, state)
        found.append(vectors)
    assert isinstance(state, KVCache)
    return torch.cat(found, 1), state


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_step_by_step_is_all_at_once(positions: Any, pre_norm: bool) -> None:
    encoder, decoder = build_networks(replace(SMALL, position_encoding=positions, pre_norm=pre_norm))
    source, ids = read(encoder, decoder), torch.randint(4, 30, (3, 20))
    whole = decoder(ids, source)[0].detach()
    for cuts in ([1] * 20, [20], [3, 1, 9, 1, 6]):
        found, state = decode_parts(decoder, source, ids, cuts)
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-5)
        assert state.count == 20


def test_rows_may_change_their_order_and_texts_leave() -> None:
    encoder, decoder = build_networks()
    source = read(encoder, decoder)
    ids = torch.randint(4, 30, (6, 9))
    whole = decoder(ids, source)[0].detach()
    _, state = decode_parts(decoder, source, ids[:, :5], [5])
    rows = torch.tensor([3, 2, 5, 5])  # of the second text both, of the third one twice
    with torch.no_grad():
        found, _ = decoder(ids[rows, 5:], source.index_select(torch.tensor([1, 2])), state.index_select(rows))
        torch.testing.assert_close(found, whole[rows, 5:], rtol=1e-4, atol=1e-5)
        again, _ = decoder(ids[:, 5:], source, state)  # what was taken is a copy
        torch.testing.assert_close(again, whole[:, 5:], rtol=1e-4, atol=1e-5)


def test_several_rows_of_a_text_share_one_copy_of_it() -> None:
    encoder, decoder = build_networks()
    source, ids = read(encoder, decoder), torch.randint(4, 30, (12, 7))
    repeated = read(encoder, decoder, [row for row in SOURCE for _ in range(4)])
    seen: dict[str, list[Tensor]] = {}
    found, _ = decoder(ids, source, record=lambda name, layer, value: seen.setdefault(name, []).append(value))
    torch.testing.assert_close(found, decoder(ids, repeated)[0], rtol=1e-4, atol=1e-5)

    def compare(name: str, layer: int, value: Tensor) -> None:
        torch.testing.assert_close(seen[name][layer], value, rtol=1e-4, atol=1e-5)

    decoder(ids, repeated, record=compare)
    assert [value.shape for value in seen["cross_attention"]] == [(12, 4, 7, 6)] * 3
    assert [value.shape for value in seen["masked_attention"]] == [(12, 4, 7, 7)] * 3
    for values in seen.values():
        for value in values:
            torch.testing.assert_close(value.sum(-1), torch.ones(value.shape[:-1]))
    assert not seen["masked_attention"][0].triu(1).any()
    assert not seen["cross_attention"][0][4:8, ..., 3:].any()  # the second text has three words
    rows = TokenBatch.pad(SOURCE)
    names: list[str] = []
    encoder(rows, record=lambda name, layer, value: names.append(name))
    assert names == ["attention"] * 2


@torch.no_grad()
def test_what_is_recorded_of_a_step_is_a_row_of_the_whole() -> None:
    encoder, decoder = build_networks()
    source, ids = read(encoder, decoder), torch.tensor(TARGET)
    whole: dict[tuple[str, int], Tensor] = {}
    decoder(ids, source, record=lambda name, layer, value: whole.update({(name, layer): value}))
    _, state = decoder(ids[:, :3], source, decoder.new_state(source, 3))
    step: dict[tuple[str, int], Tensor] = {}
    decoder(ids[:, 3:4], source, state, record=lambda name, layer, value: step.update({(name, layer): value}))
    for key, value in step.items():
        torch.testing.assert_close(value[:, :, 0], whole[key][:, :, 3, : value.shape[-1]], rtol=1e-4, atol=1e-5)


def test_a_later_word_changes_nothing_before_it_and_padding_nothing_at_all() -> None:
    encoder, decoder = build_networks()
    source, ids = read(encoder, decoder), torch.tensor(TARGET)
    other = ids.clone()
    other[:, 3] = 29
    one, two = decoder(ids, source)[0], decoder(other, source)[0]
    assert torch.equal(one[:, :3], two[:, :3])
    assert ((one - two)[:, 3:].abs().amax(-1) > 1e-3).all()
    for row, text in enumerate(SOURCE):
        alone = decoder(ids[row : row + 1], read(encoder, decoder, [text]))[0]
        torch.testing.assert_close(alone[0], one[row], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("positions", "alike"), [("none", True), ("sinusoidal", False), ("learned", False)])
def test_without_positions_words_may_stand_in_any_order(positions: Any, alike: bool) -> None:
    encoder, decoder = build_networks(replace(SMALL, position_encoding=positions))
    order = torch.randperm(9)
    text = torch.arange(10, 19)
    there, moved = (encoder(TokenBatch.pad([ids.tolist()])) for ids in (text, text[order]))
    assert torch.allclose(there.top[:, order], moved.top, atol=1e-4) is alike
    ids, rows = torch.tensor(TARGET[:1]), TokenBatch.pad([text.tolist()])
    across = [decoder(ids, decoder.project_source(output, rows))[0] for output in (there, moved)]
    assert torch.allclose(*across, atol=1e-4) is alike


def test_sinusoidal_positions_are_sines_in_even_and_cosines_in_odd_columns() -> None:
    table = sinusoidal_positions(50, 16, torch.device("cpu"))
    for t in (0, 1, 49):
        for i in range(8):
            angle = t / 10_000 ** (2 * i / 16)
            assert table[t, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[t, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_embeddings_are_tied_as_the_settings_say() -> None:
    encoder, decoder = build_networks(target=40, shared=True)
    assert decoder.word_embeddings() is encoder.words.weight
    assert not any(weight is encoder.words.weight for weight in decoder.parameters())  # it is saved once
    assert "words.weight" not in decoder.state_dict()
    top = torch.randn(2, 32)
    torch.testing.assert_close(decoder.logits(top), top @ encoder.words.weight.T)

    encoder, decoder = build_networks(SMALL, target=40)  # of equal size by chance
    assert decoder.word_embeddings() is not encoder.words.weight
    torch.testing.assert_close(decoder.logits(top), top @ decoder.word_embeddings().T)

    _, decoder = build_networks(replace(SMALL, tie_embeddings=False), target=40, shared=True)
    assert decoder.output is not None
    torch.testing.assert_close(decoder.logits(top), top @ decoder.output.weight.T)


def test_published_shapes() -> None:
    def millions(system: Transformer, vocabulary: int) -> float:
        with torch.device("meta"):
            encoder = system.build_encoder(vocabulary)
            decoder = system.build_decoder(encoder, vocabulary, shared_vocabulary=True)
        return sum(weight.numel() for module in (encoder, decoder) for weight in module.parameters()) / 1e6

    assert millions(Transformer(), 37_000) == pytest.approx(65, rel=0.05)  # Table 3
    assert millions(Transformer.sized("big"), 37_000) == pytest.approx(213, rel=0.05)
    tiny = Transformer.sized("tiny")
    assert (tiny.heads, tiny.mlp_size, tiny.layers, tiny.decoder_layers) == (4, 256, 4, 4)
    assert Transformer.sized("tiny", dropout=0.1) == replace(tiny, dropout=0.1)


def test_at_the_start_scaled_words_and_every_projection_keep_their_size() -> None:
    torch.manual_seed(0)
    encoder = Transformer(layers=1, decoder_layers=1, width=64, head_dim=16).build_encoder(500)
    assert (encoder.words.weight * 64**0.5).std().item() == pytest.approx(1, rel=0.05)
    x = torch.randn(4, 50, 64)
    attention = encoder.stack[0].get_submodule("attention")
    assert isinstance(attention, MultiHeadAttention)
    for part in attention.split_heads(attention.qkv(x)):  # each is a matrix of its own to Glorot
        assert part.std().item() == pytest.approx(1, rel=0.1)


def test_rows_that_are_too_long_are_refused() -> None:
    encoder, decoder = build_networks()
    with pytest.raises(KeelError, match="33 tokens exceeds"):
        encoder(TokenBatch.pad([[5] * 33]))
    source = read(encoder, decoder)
    with torch.no_grad():
        _, state = decoder(torch.ones(3, 32, dtype=torch.long), source, decoder.new_state(source, 3))
        with pytest.raises(KeelError, match=r"max_positions"):
            decoder(torch.ones(3, 1, dtype=torch.long), source, state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 30, "head_dim": 16}, "not a multiple"),
        ({"width": 9, "head_dim": 9}, "even"),
        ({"label_smoothing": 1.0}, "smoothing"),
        ({"decoder_layers": 0}, "decoder_layers"),
        ({"mlp_ratio": 0}, "mlp_ratio"),
    ],
)
def test_settings_that_make_no_network_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(SMALL, **settings)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@torch.no_grad()
def test_a_gpu_writes_the_same_and_is_never_waited_for() -> None:
    encoder, decoder = build_networks()
    rows, ids = TokenBatch.pad(SOURCE), torch.tensor(TARGET)
    expected = decoder(ids, decoder.project_source(encoder(rows), rows))[0]
    encoder, decoder, rows, ids = encoder.cuda(), decoder.cuda(), rows.to("cuda"), ids.cuda()
    sinusoidal_positions(32, 32, ids.device)
    try:
        torch.cuda.set_sync_debug_mode("error")  # which warns of itself: whatever comes of that, it is taken back
        source = decoder.project_source(encoder(rows), rows)
        state, found = decoder.new_state(source, 3), []
        for step in range(5):
            vectors, state = decoder(ids[:, step : step + 1], source, state)
            found.append(vectors)
        with torch.autocast("cuda", torch.bfloat16):
            source = decoder.project_source(encoder(rows), rows)
            half, state = decoder(ids[:, :1], source, decoder.new_state(source, 3))
            half, _ = decoder(ids[:, 1:], source, state)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(torch.cat(found, 1).cpu(), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(half.float().cpu(), expected[:, 1:], rtol=0.1, atol=0.1)
