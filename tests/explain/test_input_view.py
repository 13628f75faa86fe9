"""The input view shows what the encoder reads."""

from typing import Any

import pytest
import torch

from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.explain.input_view import input_view
from keel.model import Model
from keel.systems.bert import Bert
from keel.systems.gpt import Gpt
from keel.systems.rnn import Rnn
from keel.systems.system import System
from keel.systems.transformer import Transformer

WORDS = Tokenizer.from_words(["a", "fine", "day", "it", "rains", "今天"])
BERT = Bert(layers=1, width=16, head_dim=8, sequence_length=12, max_positions=16)
SHAPE: dict[str, Any] = {"layers": 1, "width": 16, "head_dim": 8, "max_positions": 16}


def new(system: System) -> Model:
    return Model(system=system, encoder=system.build_encoder(len(WORDS)).eval(), tokenizer=WORDS)


def test_a_pair_has_special_tokens_segments_and_positions() -> None:
    view = input_view(new(BERT), "a fine day", "it rains")
    assert view.tokens == ["[CLS]", "a", "fine", "day", "[SEP]", "it", "rains", "[SEP]"]
    assert view.special == [True, False, False, False, True, False, False, True]
    assert view.segments == [0, 0, 0, 0, 0, 1, 1, 1]
    assert view.positions == [*range(8)]
    assert view.tables == {"tokens": (len(WORDS), 16), "segments": (2, 16), "positions": (16, 16)}
    assert [line.split() for line in view.lines()[6:7]] == [["it", str(view.ids[5]), "5", "B"]]


def test_the_parts_add_up_to_the_encoder_s_embeddings() -> None:
    model = new(BERT)
    view = input_view(model, "a fine day", "it rains")
    encoder = BERT.build_encoder(len(WORDS))
    encoder.load_state_dict(model.encoder.state_dict())
    encoder.eval()
    assert encoder.segments is not None
    parts = [(encoder.words, view.ids), (encoder.segments, view.segments), (encoder.positions, view.positions)]
    total = sum((table.weight[index] for table, index in parts), torch.zeros(()))
    batch = TokenBatch(
        ids=torch.tensor([view.ids]), lengths=torch.tensor([len(view.ids)]), segments=torch.tensor([view.segments])
    )
    assert torch.allclose(encoder.norm(total), encoder.embed(batch)[0], atol=1e-6)


def test_networks_without_segments_have_none() -> None:
    view = input_view(new(Gpt(**SHAPE, sequence_length=16)), "a fine day")
    assert view.segments is None
    assert set(view.tables) == {"tokens", "positions"}
    sinusoidal = input_view(new(Transformer(**SHAPE)), "今天 a")
    assert (sinusoidal.position_encoding, set(sinusoidal.tables)) == ("sinusoidal", {"tokens"})
    assert "segments" not in sinusoidal.to_dict()


def test_a_long_text_is_shown_up_to_the_first_window() -> None:
    view = input_view(new(BERT), "a fine day " * 10)
    assert len(view.tokens) == BERT.max_length
    assert view.left_out == 30 - (BERT.max_length - 2)


def test_systems_without_positions_are_refused() -> None:
    with pytest.raises(UsageError, match="rnn adds neither segment nor position embeddings"):
        input_view(new(Rnn(width=8)), "a day")
    with pytest.raises(UsageError, match="text is empty"):
        input_view(new(BERT), "  ")
