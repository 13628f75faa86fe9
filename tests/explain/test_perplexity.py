"""Perplexity is of every token once, and words and bytes are those of the text whatever the subwords."""

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from keel.api.pretraining import pretrain
from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.explain.perplexity import perplexity
from keel.model import Model
from keel.systems.elmo import Elmo
from keel.systems.gpt import Gpt
from keel.systems.nnlm import Nnlm, NnlmTraining
from keel.systems.onehot import Onehot
from keel.systems.rnn import Rnn, RnnPretraining
from keel.systems.static_vectors import StaticEncoder
from keel.systems.ulmfit import Ulmfit
from keel.training.counter_rng import CounterRng
from keel.training.objective import Objective, State, Tensors

TEXTS = ["The sailor paints the boat. The judge reads a letter!", "anchor", "Zebra, the baker."]


def test_ngram_predicts_words_and_sentence_ends(english_corpus: Path, tmp_path: Path) -> None:
    model = pretrain("ngram", english_corpus, out=tmp_path / "m", order=3)
    found = perplexity(model, Corpus.of(TEXTS))
    assert (found.tokens, found.unknown, found.words, found.unit) == (18, 1, 14, "word")
    assert found.bytes == sum(map(len, TEXTS))
    assert found.count == 18 + 4
    expected = ends = last = 0.0
    for sentence in ["the sailor paints the boat .", "the judge reads a letter !", "anchor", "zebra , the baker ."]:
        ids = [model.tokenizer.cls_id, *model.tokenizer.encode(sentence).ids, model.tokenizer.sep_id]
        assert model.objective is not None
        for place in range(1, len(ids)):
            scores, _ = model.objective.step(torch.tensor([ids[:place]]))  # pyright: ignore[reportCallIssue]
            expected -= (last := scores[0, ids[place]].item())
        ends -= last if sentence != "the sailor paints the boat ." else 0.0  # the document continues
    values = {name: score.value for name, score in found.values.items()}
    assert values["ngram per token"] == pytest.approx(math.exp(expected / 22), rel=1e-5)
    expected += (len("Zebra") + 1) * math.log(257) - ends
    assert values["ngram per word"] == found.main_value == pytest.approx(math.exp(expected / 14), rel=1e-5)
    assert values["ngram bits per byte"] == pytest.approx(expected / found.bytes / math.log(2), rel=1e-5)
    score: Any
    for score in found.values.values():
        assert score.low <= score.value <= score.high
    assert str(found).startswith(f"perplexity: {values['ngram per token']:.4g} (")
    assert "18 tokens (1 unknown), 14 words" in str(found)
    assert "each from at most 2 before it" in str(found)
    assert "1 unknown token with 5 bytes" in str(found)
    assert found.to_dict()["unknown_bytes"] == 5
    found.write(tmp_path / "scores")
    assert "ngram per word" in (tmp_path / "scores" / "scores.json").read_text()


@pytest.mark.parametrize("chinese", [False, True])
def test_who_knows_fewer_words_does_not_win(
    english_corpus: Path, chinese_corpus: Path, tmp_path: Path, chinese: bool
) -> None:
    corpus = chinese_corpus if chinese else english_corpus
    settings: dict[str, Any] = {"order": 3, "held_out": 0.0}
    known = pretrain("ngram", corpus, out=tmp_path / "all", min_count=1, **settings)
    common = pretrain("ngram", corpus, out=tmp_path / "few", vocabulary=32, **settings)
    found, fewer = (perplexity(model, Corpus(corpus)) for model in (known, common))
    assert found.unknown < fewer.unknown
    assert "unknown token" not in str(found)
    assert fewer.values["ngram per token"].value < found.values["ngram per token"].value
    for name in (f"ngram per {'character' if chinese else 'word'}", "ngram bits per byte"):
        assert fewer.values[name].value > found.values[name].value


@pytest.mark.parametrize("loss", ["softmax", "negative", "hierarchical"])
def test_nnlm_perplexity_equals_step_by_step(english_corpus: Path, tmp_path: Path, loss: Any) -> None:
    system = Nnlm(width=8, hidden=8, order=3, loss=loss, chunk_length=5)
    model = pretrain(system, english_corpus, out=tmp_path / "m", vocabulary=60, steps=20, device="cpu")
    assert isinstance(model.objective, NnlmTraining)
    found = perplexity(model, Corpus.of(TEXTS))
    expected = 0.0
    with torch.no_grad():
        for text in TEXTS:
            state: State | None = None
            last = model.tokenizer.cls_id
            for number in model.tokenizer.encode(text).ids:
                scores, state = model.objective.step(torch.tensor([[last]]), state)
                expected -= scores[0].log_softmax(0)[number].item()
                last = number
    assert found.count == found.tokens == 18
    total = expected + (found.unknown_bytes + found.unknown) * math.log(257)
    assert found.values["softmax per word"].value == pytest.approx(math.exp(total / 14), rel=1e-4)
    assert found.values["softmax per token"].value == pytest.approx(math.exp(expected / 18), rel=1e-4)


@pytest.mark.parametrize("length", [70, 4])
@pytest.mark.parametrize("kind", [Rnn, Ulmfit])
def test_recurrent_model_predicts_each_token_once(kind: type[Rnn] | type[Ulmfit], length: int) -> None:
    tokenizer = Tokenizer.from_words([*"abcdefgh"])
    more: dict[str, Any] = {} if kind is Rnn else {"hidden_size": 8}
    system = kind(width=8, bptt=length, **more)
    torch.manual_seed(0)
    model = new(system, tokenizer)
    objective = model.objective
    assert isinstance(objective, RnnPretraining)
    for parameter in objective.parameters():
        nn.init.normal_(parameter)
    end = tokenizer.sep_id
    found = perplexity(model, Corpus.of(["a b\nc d e", "f", "g h a"], sentences="lines"))
    ids = [end]
    for text in ("a b", "c d e", "", "f", "", "g h a", ""):
        ids += [*tokenizer.encode(text).ids, end]
    costs, state = [], None
    with torch.no_grad():
        for last, number in pairwise(ids):
            scores, state = objective.step(torch.tensor([[last]]), state)
            costs.append(-scores[0].log_softmax(0)[number].item())
    assert found.count == len(costs) == 9 + 4 + 3
    assert found.values["next per token"].value == pytest.approx(math.exp(sum(costs) / 16), rel=1e-4)
    text = sum(costs) - sum(costs[place] for place in (6, 7, 9, 10, 14, 15))  # two special tokens after each document
    assert found.values["next per word"].value == pytest.approx(math.exp(text / 9), rel=1e-4)
    assert found.values["next bits per byte"].value == pytest.approx(text / found.bytes / math.log(2), rel=1e-4)


SHAPES: list[Any] = [
    Nnlm(width=4, hidden=4),
    Rnn(width=4, bidirectional=True, bptt=7),
    Ulmfit(width=4, hidden_size=4, bptt=7),
    Elmo(width=4, cell_size=4, max_characters=6, character_dim=2, character_filters=(4,), highway_layers=1, bptt=7),
    Gpt(layers=1, width=8, head_dim=8, max_positions=8, sequence_length=8),
]


@pytest.mark.parametrize("system", SHAPES, ids=lambda system: system.name)
def test_by_word_and_by_byte_nobody_pays_for_the_ends_of_documents(system: Any) -> None:
    tokenizer = Tokenizer.from_words([*"abc", "<|endoftext|>"])
    model = new(system, tokenizer)
    assert model.objective is not None
    for parameter in model.objective.parameters():
        nn.init.zeros_(parameter)  # so that all ids are as likely, and every prediction costs the same
    special = 2 * (system.name in ("rnn", "ulmfit", "elmo")) + (system.name == "gpt")
    for texts, inner in ((["a b c"] * 50, 0), (["a b\nc"] * 50, 50 * (special == 2))):
        found = perplexity(model, Corpus.of(texts, sentences="lines"))
        assert found.count == 150 + inner + 50 * special
        for name in found.losses:
            assert found.values[f"{name} per token"].value == pytest.approx(len(tokenizer), rel=1e-5)
            spent = math.log(found.values[f"{name} per word"].value) * 150 / math.log(len(tokenizer))
            assert spent == pytest.approx(150 + inner, rel=1e-5)
            spent = found.values[f"{name} bits per byte"].value * found.bytes / math.log2(len(tokenizer))
            assert spent == pytest.approx(150 + inner, rel=1e-5)


def new(system: Any, tokenizer: Tokenizer) -> Model:
    encoder = system.build_encoder(len(tokenizer))
    return Model(
        system=system, encoder=encoder, tokenizer=tokenizer, objective=system.build_objective(encoder, tokenizer).eval()
    )


@dataclass(frozen=True, kw_only=True)
class Seen(Tensors):
    steps: Tensor  # [rows]


class Counting(Objective):
    """Each window costs as much as windows were read before it: what is carried shows."""

    length: ClassVar[int] = 4

    def __init__(self, end: int):
        super().__init__()
        self.end, self.weight = end, nn.Parameter(torch.zeros(1))

    def epoch_size(self, data: Documents) -> int:
        return math.ceil(data.stream_size / self.length)

    def initial_state(self, batch_size: int) -> Seen:
        return Seen(steps=torch.zeros(batch_size))

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> Seen:
        raise AssertionError("rows of a step are not the text in its order")

    def sequential_batch(self, data: Documents, number: int) -> Seen:
        return Seen(steps=data.read_stream_window(number, self.length, end=self.end)[0])

    def counts(self, batch: Seen) -> dict[str, Tensor]:
        count = torch.tensor(batch.steps.shape[1] - 1.0)
        return {"there": count, "back": count}

    def forward(self, batch: Seen, state: Any = None) -> tuple[dict[str, Tensor], State | None]:
        cost = (batch.steps.shape[1] - 1) * state.steps.sum()
        return {"there": cost, "back": 2 * cost}, Seen(steps=state.steps + 1)


def test_recurrent_state_is_carried_through_the_text() -> None:
    tokenizer = Tokenizer.from_words(["the", "sailor"])
    system = Nnlm(width=4)
    model = Model(system=system, encoder=StaticEncoder(7, 4), tokenizer=tokenizer, objective=Counting(tokenizer.sep_id))
    found = perplexity(model, Corpus.of(["the sailor the sailor the", "sailor the"]))
    mean = (4 * 0 + 4 * 1 + 3 * 2) / (7 + 2 + 2)
    assert found.count == 11
    assert found.losses == ("there", "back")
    assert found.values["there per token"].value == pytest.approx(math.exp(mean))
    assert found.values["back per token"].value == pytest.approx(math.exp(2 * mean))
    assert found.values["there per word"].value == pytest.approx(math.exp(mean * 11 / 7))


def test_chinese_is_measured_per_character(chinese_corpus: Path, tmp_path: Path) -> None:
    model = pretrain("ngram", chinese_corpus, out=tmp_path / "m", order=2)
    found = perplexity(model, Corpus.of(["水手早上修理帆船。"]))
    assert (found.words, found.unit, found.bytes) == (9, "character", 27)
    assert found.tokens < 9
    assert "9 characters" in str(found)
    assert found.main == "ngram per character"
    assert f"{found.values[found.main]:.4g} per character" in str(found)
    assert "word" not in "".join(found.values)


def test_a_text_of_one_part_has_no_interval(english_corpus: Path, tmp_path: Path) -> None:
    shape: dict[str, Any] = {"layers": 1, "width": 16, "head_dim": 8, "max_positions": 64, "sequence_length": 32}
    model = pretrain("gpt", english_corpus, out=tmp_path / "m", steps=1, batch=2, vocabulary=280, device="cpu", **shape)
    found = perplexity(model, Corpus.of(["the boat", "a letter"], sentences="none"))
    values = found.to_dict()["values"]
    assert {(score["low"], score["high"]) for score in values.values()} == {(None, None)}
    assert str(found).startswith(f"perplexity: {values['next per token']['value']:.4g} per token, ")
    found = perplexity(model, Corpus.of(TEXTS, sentences="none"))  # windows are resampled, though one batch holds all
    score: Any
    for score in found.values.values():
        assert score.low < score.value < score.high


def test_a_word_without_end_has_a_perplexity_that_json_lacks(english_corpus: Path, tmp_path: Path) -> None:
    model = pretrain("ngram", english_corpus, out=tmp_path / "m", order=2)
    (tmp_path / "word.txt").write_text("y" * 2_000_000 + "\n")
    scores = perplexity(model, Corpus(tmp_path / "word.txt"))
    assert (scores.words, scores.main_value) == (1, math.inf)
    plain = json.loads(json.dumps(scores.to_dict(), allow_nan=False))
    assert plain["values"][scores.main]["value"] is None
    assert plain["values"]["ngram per token"]["value"] == scores.values["ngram per token"].value


def test_perplexity_needs_a_causal_language_model() -> None:
    tokenizer = Tokenizer.from_words(["a", "b"])
    bag = Model(system=Onehot(), encoder=Onehot().build_encoder(7), tokenizer=tokenizer)
    with pytest.raises(UsageError, match="onehot is not a causal language model"):
        perplexity(bag, Corpus.of(TEXTS))
    headless = Model(system=Nnlm(width=4), encoder=StaticEncoder(7, 4), tokenizer=tokenizer)
    with pytest.raises(UsageError, match="this model has no language model head"):
        perplexity(headless, Corpus.of(TEXTS))
