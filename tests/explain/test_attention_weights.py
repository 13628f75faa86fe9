"""Attention weights equal those of transformers; words, shares and pairs equal plain sums over them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import keel
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.explain.attention_weights import Attention, attention_weights, percent_text
from keel.model import Model
from keel.nn.multihead_attention import MultiHeadAttention

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "doctor", "nurse", "ask", "##ed", "she", "北", "京", "人"]
TEXT = "the doctor asked the nurse"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that transformers wrote, with random weights."""
    folder = tmp_path_factory.mktemp("hub") / "bert"
    folder.mkdir()
    torch.manual_seed(0)
    shape: dict[str, Any] = {"num_hidden_layers": 3, "num_attention_heads": 2, "hidden_size": 16}
    config = transformers.BertConfig(
        vocab_size=len(WORDS), intermediate_size=32, max_position_embeddings=24, initializer_range=0.5, **shape
    )
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return folder


def attentions_of(folder: Path, kind: Any, **inputs: Any) -> np.ndarray:
    """[layers, heads, queries, keys] by transformers."""
    peer = kind.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        found = peer(**{name: torch.tensor([ids]) for name, ids in inputs.items()}, output_attentions=True).attentions
    return torch.cat(found).numpy()


@pytest.mark.parametrize("second", ["", "she asked"])
def test_bert_equals_transformers(bert: Path, second: str) -> None:
    peer = transformers.BertTokenizer.from_pretrained(bert)
    inputs = dict(peer(TEXT, second or None))
    found = keel.attention(TEXT, second, model=bert)
    theirs = attentions_of(bert, transformers.BertModel, **inputs)
    assert found.weights.shape == theirs.shape
    assert np.abs(found.weights - theirs).max() < 1e-5
    assert found.keys == found.queries == peer.convert_ids_to_tokens(inputs["input_ids"])
    assert (found.kind, found.layers, found.heads) == ("encoder", [1, 2, 3], [1, 2])
    assert theirs.std() > 0.05  # not uniform


def test_gpt2_equals_transformers(gpt_folder: Path) -> None:
    text = "the farmer is kind and late"
    ids = transformers.AutoTokenizer.from_pretrained(gpt_folder)(text)["input_ids"]
    found = keel.attention(text, model=gpt_folder)
    theirs = attentions_of(gpt_folder, transformers.GPT2LMHeadModel, input_ids=ids)
    assert found.weights.shape == theirs.shape
    assert np.abs(found.weights - theirs).max() < 1e-5
    assert found.kind == "decoder"
    assert "".join(found.keys).replace("␣", "") == text.replace(" ", "")


def test_only_the_chosen_layers_are_computed(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model.load(bert, device="cpu")
    calls: list[int] = []
    everything = keel.attention(TEXT, model=model)
    original: Callable[..., Any] = MultiHeadAttention.weights
    monkeypatch.setattr(
        MultiHeadAttention, "weights", staticmethod(lambda *given: (calls.append(1), original(*given))[1])
    )
    chosen = keel.attention(TEXT, model=model, layer=(-1, 1), head=2)
    assert len(calls) == 2
    assert (chosen.layers, chosen.heads) == ([1, 3], [2])
    assert np.array_equal(chosen.weights, everything.weights[[0, 2]][:, 1:])
    assert np.array_equal(chosen.head(3, 2), everything.head(3, 2))
    model.encode(TEXT)
    assert len(calls) == 2  # nothing is recorded elsewhere


def test_words_get_sums_and_give_means(bert: Path) -> None:
    tokens, words = keel.attention(TEXT, model=bert), keel.attention(TEXT, model=bert, merge="words")
    assert tokens.keys == ["[CLS]", "the", "doctor", "ask", "##ed", "the", "nurse", "[SEP]"]
    assert words.keys == ["[CLS]", "the", "doctor", "asked", "the", "nurse", "[SEP]"]
    weights = tokens.weights
    assert np.allclose(words.weights[..., 1, 3], weights[..., 1, 3] + weights[..., 1, 4], atol=1e-6)
    assert np.allclose(words.weights[..., 3, 1], (weights[..., 3, 1] + weights[..., 4, 1]) / 2, atol=1e-6)
    assert np.allclose(words.weights.sum(-1), 1, atol=1e-5)
    assert np.allclose(words.uniform.sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize(("merge", "names"), [("characters", ["北", "京", "人"]), ("words", ["北京", "人"])])
def test_chinese_in_characters_or_words(bert: Path, merge: Any, names: list[str]) -> None:
    pytest.importorskip("jieba")
    found = keel.attention("北京人", model=bert, merge=merge)
    jieba_words = keel.segment("北京人")
    assert found.keys[1:-1] == (names if merge == "characters" else jieba_words)


def test_bytes_of_a_chinese_character_are_one_word(gpt_folder: Path) -> None:
    tokens, merged = (
        keel.attention("北京 x", model=gpt_folder),
        keel.attention("北京 x", model=gpt_folder, merge="characters"),
    )
    assert len(tokens.keys) > 3
    assert {*tokens.keys} - {"␣"} == {"北", "京", "x"}
    assert merged.keys == ["北", "京", "x"]


def test_two_words_through_all_heads(bert: Path) -> None:
    found = keel.attention(TEXT, model=bert, from_word="Asked", to_word="doctor")
    assert np.allclose(found.between(), found.weights[:, :, [3, 4], 2].mean(-1))
    everywhere = keel.attention(TEXT, model=bert, to_word="the")
    assert np.allclose(everywhere.between(), everywhere.weights[..., [1, 5]].sum(-1).mean(-1))
    special = keel.attention(TEXT, model=bert, from_word="[CLS]", to_word="[SEP]")
    assert np.allclose(special.between(), special.weights[:, :, 0, -1])
    layer, head, value = found.strongest(found.between(), 1)[0]
    assert value == found.between().max() == found.between()[layer - 1, head - 1]
    with pytest.raises(KeelError, match="'cat'"):
        keel.attention(TEXT, model=bert, from_word="cat", to_word="the")


def test_shares_leave_out_a_token_that_attends_to_itself(bert: Path, gpt_folder: Path) -> None:
    found = keel.attention(TEXT, "she asked", model=bert)
    separators = [number for number, name in enumerate(found.keys) if name == "[SEP]"]
    assert found.separators == separators
    assert len(separators) == 2
    others = [number for number in range(len(found.keys)) if number not in separators]
    assert np.allclose(found.first_token_shares, found.weights[:, :, 1:, 0].mean(-1))
    assert np.allclose(found.separator_shares, found.weights[:, :, others][..., separators].sum(-1).mean(-1))
    assert found.uniform_shares == pytest.approx((1 / len(found.keys), 2 / len(found.keys)))
    masked = keel.attention("the farmer", model=gpt_folder)
    count = len(masked.keys)
    assert masked.uniform_shares[0] == pytest.approx(np.mean([1 / (n + 1) for n in range(1, count)]))
    assert masked.separators == []
    assert masked.to_dict()["separator_share"] is None


PAIRS = [("a b", "x y"), ("b a", "y x"), ("b b", "y y")] * 4


@pytest.fixture(scope="module")
def translators() -> dict[str, Model]:
    once: dict[str, Any] = {"task": "seq2seq", "steps": 2, "batch": 4, "dev": None, "device": "cpu"}
    shape: dict[str, Any] = {"layers": 1, "width": 16, "head_dim": 8, "max_positions": 16, "dropout": 0.0}
    return {
        "transformer": keel.finetune(keel.Transformer(decoder_layers=2, **shape), PAIRS, **once),
        "seq2seq": keel.finetune(keel.Seq2seq(width=16, attention_dim=8), PAIRS, **once),
    }


def test_three_kinds_of_attention(translators: dict[str, Model]) -> None:
    model = translators["transformer"]
    cross = keel.attention("a b", "x y", model=model)
    assert (cross.kind, cross.layers, cross.heads) == ("cross", [1, 2], [1, 2])
    assert (cross.keys, cross.queries) == (["a", "b", "[SEP]"], ["x", "y", "[SEP]"])
    assert np.allclose(cross.weights.sum(-1), 1, atol=1e-5)
    masked = keel.attention("a b", "x y", model=model, kind="decoder")
    assert masked.keys == masked.queries == ["[CLS]", "x", "y"]
    assert (np.triu(masked.weights, 1) == 0).all()
    encoder = keel.attention("a b", model=model, kind="encoder")
    assert (encoder.keys, encoder.layers) == (["a", "b", "[SEP]"], [1])
    assert (encoder.weights > 0).all()
    own = keel.attention("a b", model=model)  # of what it generates
    generated = str(model.predict("a b")).replace(" ", "")
    assert generated
    assert generated.startswith("".join(own.queries[:-1]).replace("␣", ""))


def test_alignment_of_a_recurrent_decoder(translators: dict[str, Model]) -> None:
    found = keel.attention("a b", "x y", model=translators["seq2seq"], from_word="x", to_word="a")
    assert found.weights.shape == (1, 1, 3, len(found.keys))
    assert np.allclose(found.weights.sum(-1), 1, atol=1e-5)
    assert found.between() == found.weights[0, 0, 0, found.keys.index("a")]
    kinds: list[Any] = ["encoder", "decoder"]
    for kind in kinds:
        with pytest.raises(UsageError, match="attention"):
            keel.attention("a b", model=translators["seq2seq"], kind=kind)


def test_a_sink_is_the_first_key() -> None:
    tokenizer = Tokenizer.from_words(["a", "b"])
    system = keel.Gpt(layers=1, width=16, head_dim=8, max_positions=8, sequence_length=8, sink=True)
    encoder = system.build_encoder(len(tokenizer))
    found = attention_weights(Model(system=system, encoder=encoder, tokenizer=tokenizer), "a b", to_word="b")
    assert found.keys == ["<sink>", "a", "b"]
    assert found.to_positions == [2]
    assert found.weights.shape == (1, 2, 3, 3)


def test_long_texts_are_truncated_with_a_note(bert: Path) -> None:
    notes: list[Any] = []
    found = keel.attention("the " * 40, model=bert, on_event=notes.append)
    assert len(found.keys) == 24
    assert any("40 tokens" in event["text"] and "22" in event["text"] for event in notes)
    pair = keel.attention("the " * 40, "she " * 3, model=bert)
    assert (pair.keys.count("the"), pair.keys.count("she")) == (18, 3)


def test_what_cannot_be_shown_is_refused(bert: Path, gpt_folder: Path) -> None:
    wrong: list[dict[str, Any]] = [{"layer": 4}, {"layer": 0}, {"head": 3}, {"layer": (1, -4)}]
    for settings in wrong:
        with pytest.raises(UsageError, match="choose from 1 to"):
            keel.attention(TEXT, model=bert, **settings)
    wrong = [{"merge": "all"}, {"kind": "cross"}, {"kind": "all"}]
    for settings in wrong:
        with pytest.raises(UsageError):
            keel.attention(TEXT, model=bert, **settings)
    with pytest.raises(UsageError, match="empty"):
        keel.attention("  ", model=bert)
    with pytest.raises(UsageError, match="one text"):
        keel.attention("a", "b", model=gpt_folder)
    words = Model.of_vectors(Model.load(bert, device="cpu").vector_space(), title="words")
    with pytest.raises(UsageError, match="no self-attention"):
        keel.attention("the", model=words)


def test_lines_fit_a_terminal_and_data_is_json(bert: Path) -> None:
    long = f"{'ask' * 30} the nurse"
    both = {"from_word": "the", "to_word": "nurse"}
    views: list[dict[str, Any]] = [{}, {"layer": 1, "head": 1}, {"from_word": "the"}, {"to_word": "the"}, both]
    for settings in views:
        found = keel.attention(long, model=bert, merge="words", **settings)
        assert max(map(len, found.lines())) <= 80
        data = json.loads(json.dumps(found.to_dict()))
        assert np.allclose(data["weights"], found.weights, atol=1e-6)


def test_many_heads_wrap() -> None:
    weights = np.full((2, 40, 3, 3), 1 / 3, np.float32)
    names = ["a", "b", "c"]
    heads = [*range(1, 41)]
    found = Attention("m", "encoder", names, names, [1, 2], heads, weights, weights[0, 0], [2])
    assert max(map(len, found.lines())) <= 80
    assert sum(line.startswith("  head") for line in found.lines()) == 6


@pytest.mark.parametrize(
    ("share", "shown"), [(1, "100"), (0.125, "12"), (0.0996, "10"), (0.042, "4.2"), (1 / 512, "0.2")]
)
def test_uniform_attention_has_digits(share: float, shown: str) -> None:
    assert percent_text(share) == shown
