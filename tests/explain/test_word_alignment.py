from typing import Any

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from torch import Tensor, nn

from keel.data.corpus import Corpus
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.explain.word_alignment import Alignment, align_words
from keel.nn.encoder import Decoder, Encoder, EncoderOutput
from keel.systems.seq2seq import Seq2seq
from keel.systems.transformer import Transformer

SYSTEM = Seq2seq(width=8, attention_dim=8, dropout=0.5)
ENGLISH, GERMAN = "the white houses", "die weissen häuser"


@pytest.fixture(scope="module")
def tokenizers() -> tuple[Tokenizer, Tokenizer]:
    """Tokenizers that split longer words into subwords."""
    return (
        Tokenizer.train(Corpus.of(["my lazy dog: the white house houses a fox " * 3]), kind="wordpiece", size=32),
        Tokenizer.train(Corpus.of(["die weissen häuser haus die " * 3]), kind="wordpiece", size=32),
    )


def aligned(tokenizers: tuple[Tokenizer, Tokenizer], decoder: Decoder | None = None, **settings: Any) -> Alignment:
    torch.manual_seed(0)
    encoder = SYSTEM.build_encoder(len(tokenizers[0]))
    decoder = decoder or SYSTEM.build_decoder(encoder, len(tokenizers[1]))
    with torch.no_grad():
        for weights in [*encoder.parameters(), *decoder.parameters()]:
            weights.mul_(5)  # or it would look everywhere alike
    found = align_words(SYSTEM, encoder, decoder, tokenizers, ENGLISH, GERMAN, **settings)
    assert encoder.training, "is left as it was"
    assert decoder.training
    return found


def test_subwords_are_merged_into_words(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    words, subwords = aligned(tokenizers), aligned(tokenizers, subwords=True)
    assert words.source == ["[SEP]", *ENGLISH.split(), "[SEP]"]
    assert words.target == [*GERMAN.split(), "[SEP]"]
    assert words.weights.sum(1) == pytest.approx(1.0, abs=1e-5)
    assert len(subwords.source) > len(words.source)
    assert "".join(subwords.source[1:-1]) == ENGLISH.replace(" ", "")
    count = len(tokenizers[0].encode("the").ids)
    to_the = subwords.weights[:, 1 : 1 + count].sum(1)
    rows = len(tokenizers[1].encode("die").ids)
    assert words.weights[0, 1] == pytest.approx(to_the[:rows].mean(), abs=1e-6)
    assert words.lines()[0].split()[0] == "die"
    assert len(words.to_dict()["weights"]) == len(words.target)


class Looking(Decoder):
    """Shows two layers of two heads, each of which looks at one place of the source."""

    def __init__(self) -> None:
        super().__init__(Encoder(), 1, 1, shared=False)
        self.bias = nn.Parameter(torch.zeros(1))

    def project_source(self, output: EncoderOutput, batch: TokenBatch) -> Any:
        return output.top

    def forward(self, ids: Tensor, source: Any, state: Any = None, *, record: Any = None) -> Any:
        for layer in range(2):
            weights = torch.zeros(1, 2, ids.shape[1], source.shape[1])
            for head in range(2):
                weights[:, head, :, 2 * layer + head] = 1
            record("cross_attention", layer, weights)
            record("attention", layer, weights * 7)
        return None, None


def test_layers_and_heads_are_averaged_or_named(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    seen = aligned(tokenizers, Looking(), subwords=True)
    assert seen.weights[0, :4].tolist() == [0.25] * 4
    assert aligned(tokenizers, Looking(), subwords=True, layer=1).weights[0, :4].tolist() == [0, 0, 0.5, 0.5]
    assert aligned(tokenizers, Looking(), subwords=True, layer=1, head=1).weights[0, :4].tolist() == [0, 0, 0, 1]
    with pytest.raises(KeelError, match=r"no layer 2 .* from 0 to 1"):
        aligned(tokenizers, Looking(), layer=2)
    with pytest.raises(KeelError, match="no head 2: choose from 0 to 1"):
        aligned(tokenizers, Looking(), head=2)


def test_a_transformer_s_layers_look_across(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    torch.manual_seed(0)
    system = Transformer(layers=2, width=16, head_dim=8)
    encoder = system.build_encoder(len(tokenizers[0]))
    decoder = system.build_decoder(encoder, len(tokenizers[1]))
    found = align_words(system, encoder, decoder, tokenizers, ENGLISH, GERMAN)
    one = align_words(system, encoder, decoder, tokenizers, ENGLISH, GERMAN, layer=1, head=1)
    assert found.weights.shape == one.weights.shape == (len(found.target), len(found.source))
    assert found.weights.sum(1) == pytest.approx(1.0, abs=1e-5)
    assert not np.allclose(found.weights, one.weights)


@pytest.mark.parametrize("seen", ["春风花月红", "春风,花月", "the white houses"])
@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_chinese_columns_are_tokens(seen: str, kind: Any) -> None:
    tokenizer = Tokenizer.train(Corpus.of([seen] * 3), kind=kind, size=262 if kind == "bpe" else 60)
    encoder = SYSTEM.build_encoder(len(tokenizer))
    decoder = SYSTEM.build_decoder(encoder, len(tokenizer))
    found = align_words(SYSTEM, encoder, decoder, (tokenizer, tokenizer), "春风花月红", "a Boat 春风 红b")
    assert found.source[1:-1] == [*"春风花月红"]
    assert found.target[:-1] == ["a", "Boat", *"春风红b"]
    assert {cell_len(line.rsplit("  ", 2)[0]) for line in found.lines()} == {max(map(cell_len, found.target))}
    assert found.weights.shape == (len(found.target), len(found.source))
    assert found.weights.sum(1) == pytest.approx(1.0, abs=1e-5)


def test_chinese_subword_of_several_characters_is_one_column() -> None:
    tokenizer = Tokenizer.train(Corpus.of(["春风，花月，红"] * 9), kind="bpe", size=320)
    encoder = SYSTEM.build_encoder(len(tokenizer))
    decoder = SYSTEM.build_decoder(encoder, len(tokenizer))
    found = align_words(SYSTEM, encoder, decoder, (tokenizer, tokenizer), "春风花月红", "花月春风")
    assert (found.source[1:-1], found.target[:-1]) == (["春风", "花月", "红"], ["花月", "春风"])
