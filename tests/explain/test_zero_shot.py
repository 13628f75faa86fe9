"""Last words and choices are scored by how likely a model finds them."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import keel
from keel.data.examples import read_examples
from keel.data.multiple_choice_files import read_choices
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.explain.zero_shot import choose_most_probable, predict_last_words

WORDS = Tokenizer.from_words(["q", "a", ":", "the", "sea", "is", "blue", "grass", "green", "very", "and", "of", "deep"])


class Parrot(nn.Module):
    """After "sea ... is" comes blue, after "grass ... is" green, with log-odds of 4; "very" is always likely."""

    bos_id, eos_id, max_context = WORDS.cls_id, None, None

    def new_state(self, batch_size: int) -> None:
        return None

    def step(self, ids: Tensor, state: Any, record: Any = None) -> Any:
        raise AssertionError("all is foretold at once")

    def logits_at(self, ids: Tensor, positions: Tensor) -> Tensor:
        found = torch.zeros(len(positions), len(WORDS))
        for row, position in enumerate(positions.tolist()):
            time = ids.shape[1]
            read = WORDS.decode(ids[position // time, : position % time + 1].tolist()).split()
            found[row, WORDS.id_of("very")] = 2.0
            if read[-1:] == ["is"] or read[-1:] == [":"]:
                found[row, WORDS.id_of("blue")] = 4.0 * ("sea" in read)
                found[row, WORDS.id_of("green")] = 4.0 * ("grass" in read)
        return found


@pytest.fixture
def model() -> Any:
    return SimpleNamespace(objective=Parrot(), tokenizer=WORDS, system=SimpleNamespace(name="parrot"))


def test_last_word_accuracy(model: Any) -> None:
    texts = ["the sea is blue", "the grass is green\n", "the grass is  blue", "the sea is purple"]
    scores = predict_last_words(model, read_examples(texts, pair=False))
    assert (scores.main, scores.count) == ("accuracy", 4)
    assert scores.main_value == 0.5
    whole = math.log(math.e**4 + math.e**2 + len(WORDS) - 2)
    unknown = whole + len("purple ") * math.log(257)  # not in the vocabulary: wrong, and charged per byte
    expected = math.exp((whole - 4 + whole - 4 + whole + unknown) / 4)
    assert scores.values["perplexity"].value == pytest.approx(expected)
    assert "1 are not in the vocabulary: wrong" in scores.note
    assert {(error.where, error.label, error.predicted) for error in scores.errors} == {
        ("item 2 of the list", "blue", "green"),
        ("item 3 of the list", "purple", "blue"),
    }
    accuracy: Any = scores.values["accuracy"]
    assert accuracy.low < 0.5 < accuracy.high


def test_choice_by_likelihood(model: Any) -> None:
    questions = [
        (("the sea is", ["green", "blue"]), 1),
        (("the grass is ", ["very", "green and deep"]), 1),
        (("and the sea ?", ["blue", "green"]), 0),
    ]
    scores = choose_most_probable(model, read_choices(questions))
    found = {name: score.value for name, score in scores.values.items()}
    # "green and deep" has two more words than "very", and gains more by the grass.
    assert found == pytest.approx(
        {"accuracy by sum": 2 / 3, "accuracy per token": 1.0, "accuracy per byte": 1.0, "accuracy by gain": 1.0}
    )
    assert scores.main == "accuracy per byte"
    assert "random baseline 0.500" in scores.note


@pytest.mark.parametrize("right", [0, 1])
def test_tied_choices_count_half_whichever_comes_first(model: Any, right: int) -> None:
    pairs = [("qqq", "zzz"), ("blue", "qqqq")]  # two unknown words; a known one, which is more probable
    questions = [(("the sea is", list(pair if right == 0 else pair[::-1])), right) for pair in pairs]
    scores = choose_most_probable(model, read_choices(questions))
    assert {score.value for score in scores.values.values()} == {0.75}
    assert scores.ties == 1
    assert "1 of 2" in scores.note


BYTES = Tokenizer.train(keel.Corpus.of(["Q: A: 天空是"]), kind="bpe", size=262)


class Pairs(nn.Module):
    """After "是" or a colon comes "蓝", after "is" or a colon " blue"; to finish "红" or "glue" is as likely."""

    bos_id, eos_id, max_context = BYTES.sep_id, None, None

    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.zeros(len(BYTES), len(BYTES))
        for text in ("是蓝", ":蓝", ": blue", "is blue", "红", "glue"):
            ids = BYTES.encode(text).ids
            self.scores[ids[:-1], ids[1:]] = 6.0

    def new_state(self, batch_size: int) -> None:
        return None

    def step(self, ids: Tensor, state: Any, record: Any = None) -> Any:
        return self.scores[ids[:, -1]], None


@pytest.mark.parametrize(
    ("context", "choices"),
    [
        ("天空是", ("红", "蓝")),
        ("海是什么颜色？", ("红", "蓝")),
        ("the sea is", ("glue", "blue")),
        ("which is the sea?", ("glue", "blue")),
    ],
)
def test_a_blank_stands_before_a_choice_but_not_in_chinese(context: str, choices: tuple[str, ...]) -> None:
    model: Any = SimpleNamespace(objective=Pairs(), tokenizer=BYTES, system=SimpleNamespace(name="pairs"))
    scores = choose_most_probable(model, read_choices([((context, list(choices)), 1)]))
    assert scores.main_value == 1


def test_texts_without_context_are_refused(model: Any) -> None:
    with pytest.raises(KeelError, match=r"item 1 of the list: 'blue' has no last word after a context"):
        predict_last_words(model, read_examples(["the sea", "blue"], pair=False))


@pytest.fixture(scope="module")
def ngram(english_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> keel.Model:
    return keel.pretrain("ngram", english_corpus, out=tmp_path_factory.mktemp("foretold") / "m", order=3)


def test_evaluate_dispatches_language_models(ngram: keel.Model, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("The sailor came after the rain\nThe baker slept before winter\n")
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"text": "The sailor came after the rain"}\n{"text": "The baker slept before winter"}\n')
    scores = keel.evaluate(ngram, texts, by="last-word", out=tmp_path / "out")
    assert scores.main_value == 1
    assert scores.values == keel.evaluate(ngram, lines, by="last-word").values
    assert (tmp_path / "out" / "scores.json").is_file()
    with pytest.raises(KeelError, match="by"):
        keel.evaluate(ngram, texts, by="words")  # type: ignore
