"""Attributions: planted keywords are found, sums are complete, and curves beat random orders."""

import random
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import keel
from keel.api.inspection import coloured_texts, write_explanation
from keel.data.corpus import Corpus
from keel.data.examples import Examples, read_examples
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.explain.attributions.prediction_layouts import log_odds
from keel.explain.attributions.prediction_scores import BagPrediction, EmbeddedPrediction, score_prediction
from keel.explain.attributions.word_attributions import Curves, Explanation, attribute_words, ranking_curves
from keel.explain.text_tokens import split_text
from keel.model import Model
from keel.tasks import TASKS
from keel.tasks.answer import SpanAnswering
from tests.tiny_task import LABEL_WORDS, WORDS, sentences

LABELS = ["good", "bad", "odd"]
RUN: dict[str, Any] = {"dev": None, "device": "cpu", "progress": False}
BLOCK: dict[str, Any] = {"layers": 1, "width": 32, "head_dim": 16, "max_positions": 32, "sequence_length": 32}
BLOCK |= {"dropout": 0.0, "attention_dropout": 0.0, "lr": 1e-3, "epochs": 30}
SYSTEMS: dict[str, dict[str, Any]] = {
    "onehot": {},
    "fasttext": {"width": 8},
    "word2vec": {"width": 16, "epochs": 15, "lr": 1e-2},
    "cnn": {"width": 16, "filters": 8, "epochs": 15, "lr": 1e-2},
    "rnn": {"width": 16, "layers": 1, "epochs": 15, "lr": 1e-2},
    "elmo": {"width": 16, "cell_size": 16, "character_filters": (8, 8), "highway_layers": 1}
    | {"epochs": 10, "lr": 1e-2, "freeze": False},
    "gpt": BLOCK | {"lr": 3e-3, "epochs": 15},
    "bert": BLOCK,
    "electra": BLOCK,
}
BAGS = ("onehot", "fasttext")


@pytest.fixture(scope="module")
def planted() -> Callable[[str], Model]:
    """A model of a system, fine-tuned on texts in which one word decides the label; made once."""
    made: dict[str, Model] = {}

    def make(name: str) -> Model:
        if name not in made:
            made[name] = keel.finetune(name, sentences(300, LABELS), task="classify", **SYSTEMS[name], **RUN)
        return made[name]

    return make


def odds(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


@pytest.mark.parametrize("by", ["gradients", "occlusion"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_planted_keywords_are_found_and_curves_beat_random_order(
    name: str, by: Any, planted: Callable[[str], Model]
) -> None:
    model = planted(name)
    if name in BAGS and by == "gradients":
        with pytest.raises(UsageError, match="counts words and has no input embeddings"):
            attribute_words(model, "the film", by=by)
        return
    gains = []
    for text, label in sentences(6, LABELS, seed=5):
        found = attribute_words(model, text, by=by, curves=True)
        predicted = model.predict(text)
        assert (found.prediction, found.by) == (label, by) == (predicted.label, by)
        assert found.probability == pytest.approx(predicted.confidence, abs=1e-5)
        if predicted.confidence < 0.999:  # rounding
            assert found.score == pytest.approx(odds(predicted.confidence), abs=1e-2)
        assert [word.word for word in found.words] == text.split()
        assert found.ranked()[0].word == LABEL_WORDS[label]
        if by == "gradients":
            assert found.completeness_error < 0.02
            assert found.total == pytest.approx(found.difference, abs=0.05 * max(1.0, abs(found.difference)))
        assert found.curves
        random_areas = np.mean(found.curves.random_areas, axis=0)
        gains.append((random_areas[0] - found.curves.deletion_area, found.curves.insertion_area - random_areas[1]))
    assert min(np.mean(gains, axis=0)) > 0.1


def test_a_linear_model_has_its_exact_contributions() -> None:
    """Mean of word vectors, two classes: log-odds = (w1 - w0) . mean + b."""
    model = keel.finetune("word2vec", sentences(60, LABELS[:2]), task="classify", width=8, epochs=3, lr=1e-2, **RUN)
    text = "the old film was dreadful and loud"
    assert model.task is not None
    classifier: Any = model.task.classifier
    with torch.no_grad():
        vectors = model.encoder.word_embeddings()
        assert vectors is not None
        ids = model.tokenizer.encode(text).ids
        weight = classifier.weight[1] - classifier.weight[0]
        wanted = (vectors[ids] @ weight / len(ids)).numpy()
    sign = 1 if model.predict(text).label == model.label_names[1] else -1
    for settings in ({"by": "gradients", "steps": 1}, {"by": "occlusion"}):
        found = attribute_words(model, text, **settings)  # pyright: ignore[reportArgumentType]
        np.testing.assert_allclose([word.attribution for word in found.words], sign * wanted, atol=1e-5)
        assert found.completeness_error < 1e-4


def test_integrated_gradients_equal_those_of_transformers(tmp_path: Path) -> None:
    """By a midpoint rule on the output of the embeddings of BertForSequenceClassification."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "film", "##s", "are", "bad", "not"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        num_labels=3, initializer_range=0.3, id2label={0: "a", 1: "b", 2: "c"}, label2id={"a": 0, "b": 1, "c": 2},
    )  # fmt: skip
    theirs = transformers.BertForSequenceClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    found = attribute_words(Model.load(tmp_path, device="cpu"), "the films are not bad", by="gradients", baseline="pad")
    assert [word.word for word in found.words] == ["the", "films", "are", "not", "bad"]

    ids = torch.tensor([[2, 5, 6, 7, 8, 10, 9, 3]])
    blank = ids.clone()
    blank[0, 1:-1] = 0
    with torch.no_grad():
        x, b = theirs.bert.embeddings(ids), theirs.bert.embeddings(blank)
    label = "abc".index(found.prediction)
    total = torch.zeros_like(x)
    steps = 400
    for step in range(steps):
        point = (b + (step + 0.5) / steps * (x - b)).requires_grad_()
        handle = theirs.bert.embeddings.register_forward_hook(lambda *_, point=point: point)
        logits = theirs(input_ids=ids).logits
        handle.remove()
        others = torch.cat([logits[:, :label], logits[:, label + 1 :]], 1)
        total += torch.autograd.grad((logits[0, label] - others.logsumexp(1)[0]), point)[0] / steps
    tokens = (total * (x - b)).sum(-1)[0].tolist()
    wanted = [tokens[1], tokens[2] + tokens[3], *tokens[4:-1]]
    np.testing.assert_allclose([word.attribution for word in found.words], wanted, atol=2e-3)


@pytest.mark.parametrize("name", BAGS)
def test_occlusion_of_a_bag_is_the_prediction_for_the_text_without_the_word(
    name: str, planted: Callable[[str], Model]
) -> None:
    model, text = planted(name), "the old film was dreadful"
    scores = score_prediction(model, text, None)
    assert isinstance(scores, BagPrediction)
    variants = np.eye(5, dtype=bool)
    found = scores.occlude(variants).probabilities
    assert model.task is not None
    column = model.label_names.index(scores.target.prediction)
    for number, probability in enumerate(found.tolist()):
        rest = " ".join(word for index, word in enumerate(text.split()) if index != number)
        task: Any = model.task
        examples = Examples.of([task.make_example(rest, 0)], None, "rest")
        assert probability == pytest.approx(task.predict(examples).estimates[0, column], abs=1e-5)


@pytest.mark.parametrize("baseline", ["mask", "pad", "zero"])
def test_the_baseline_can_be_chosen(baseline: Any, planted: Callable[[str], Model]) -> None:
    found = attribute_words(planted("bert"), "the old film was strange", baseline=baseline)
    assert found.baseline == {"mask": "[MASK]", "pad": "[PAD]", "zero": "zero vectors"}[baseline]
    assert found.ranked()[0].word == "strange"
    assert found.completeness_error < 0.02
    if baseline == "mask":  # the input without words is a text of masks
        masked = planted("bert").predict("[MASK] [MASK] [MASK] [MASK] [MASK]")
        scores = score_prediction(planted("bert"), "the old film was strange", None)
        blank = scores.occlude(np.ones((1, 5), bool)).probabilities[0]
        assert (masked.label == "odd") == (blank == pytest.approx(masked.confidence, abs=1e-4))


def test_another_label_can_be_explained(planted: Callable[[str], Model]) -> None:
    found = attribute_words(planted("bert"), "the old film was strange", label="good")
    assert found.prediction == "good"
    assert found.ranked()[-1].word == "strange"


def test_a_long_text_is_read_in_windows(planted: Callable[[str], Model]) -> None:
    words = [random.Random(3).choice(WORDS.split()) for _ in range(90)]
    words[70] = "dreadful"
    model, text = planted("bert"), " ".join(words)
    scores = score_prediction(model, text, None)
    assert isinstance(scores, EmbeddedPrediction)
    assert len(scores.token_words) > 2
    assert scores.tokens > 90 + 2 * len(scores.token_words)  # windows overlap
    found = attribute_words(model, text, label="bad")
    assert len(found.words) == 90
    assert found.ranked()[0].word == "dreadful"
    assert found.completeness_error < 0.02
    prediction = model.predict(text)
    again = attribute_words(model, text, by="occlusion")
    assert again.probability == pytest.approx(prediction.confidence, abs=1e-5)
    assert "showing the 40 strongest of 90 words" in "\n".join(found.lines())


PAIR_HEADS: dict[str, dict[str, Any]] = {
    "cross": {},
    "both orders": {"orders": "both"},
    "siamese": {"pair_encoding": "siamese", "pool": "mean"},
}


@pytest.mark.parametrize("head", PAIR_HEADS)
def test_the_words_of_a_pair(head: str) -> None:
    rng = random.Random(0)

    def text() -> str:
        return " ".join(rng.choices(WORDS.split(), k=4))

    pairs = [((text(), f"{text()} {LABEL_WORDS[label]}"), label) for label in ("good", "bad") * 60]
    model = keel.finetune("bert", pairs, task="pair", **BLOCK | PAIR_HEADS[head], **RUN)
    found = attribute_words(model, "a quiet film", "the garden was dreadful")
    assert [each.name for each in found.texts] == ["first", "second"]
    assert [(word.text, word.word) for word in found.words][2:4] == [(0, "film"), (1, "the")]
    assert found.prediction == "bad"
    assert found.ranked()[0].word == "dreadful"
    assert found.completeness_error < 0.02
    assert found.probability == pytest.approx(
        model.predict(("a quiet film", "the garden was dreadful")).confidence, abs=1e-5
    )
    with pytest.raises(UsageError, match="give two texts"):
        attribute_words(model, "a quiet film")


@pytest.fixture(scope="module")
def tagger() -> Model:
    """A word after "mr" is a person; the same words occur elsewhere."""
    rng = random.Random(0)
    rows = []
    for _ in range(150):
        words = rng.choices(WORDS.split(), k=5)
        place = rng.randrange(5)
        tags = ["O"] * 6
        tags[place + 1] = "B-PER"
        rows.append(([*words[:place], "mr", *words[place:]], tags))
    return keel.finetune("rnn", rows, task="tag", width=32, layers=1, epochs=40, lr=1e-2, **RUN)


@pytest.mark.parametrize("by", ["gradients", "occlusion"])
def test_the_tag_of_a_word_is_explained_by_the_word_before_it(by: Any, tagger: Model) -> None:
    text = "the house mr garden was quiet"
    tagged = tagger.predict(text)
    assert tagged.tags[3] == "B-PER"
    for word in ("garden", "4", ""):
        found = attribute_words(tagger, text, word=word, by=by, curves=True)
        assert found.prediction == "B-PER"
        assert "'garden' (word 4)" in found.target
        assert found.ranked()[0].word == "mr"
        assert found.probability == pytest.approx(tagged.probabilities[3], abs=1e-5)
        assert found.curves
        assert found.curves.beats_random
    if by == "gradients":
        assert found.completeness_error < 0.02
    with pytest.raises(UsageError, match="no word 'sea'"):
        attribute_words(tagger, text, word="sea")


def test_a_tagger_with_crf_characters_and_ngram_scores_is_complete() -> None:
    rows = [(["the", "house", "was", "old"], ["O", "B-X", "I-X", "O"])] * 8
    head: dict[str, Any] = {"network": "lstm", "network_width": 8, "crf": True, "characters": "cnn", "window_ngrams": 2}
    model = keel.finetune("word2vec", rows, task="tag", width=8, epochs=2, **head, **RUN)
    for by in ("gradients", "occlusion"):
        found = attribute_words(model, "the house was old", word="house", label="B-X", by=by, curves=True)
        assert "without the CRF" in found.target
        assert any(word.attribution for word in found.words)
        assert by == "occlusion" or found.completeness_error < 0.02


def test_a_word_is_explained_in_the_window_that_tags_it() -> None:
    rows = [(["the", "house", "was", "old"], ["D", "N", "V", "A"])] * 8
    model = keel.finetune("bert", rows, task="tag", **BLOCK | {"epochs": 2}, **RUN)
    text = "the house was old " * 20
    for number in (1, 40, 80):
        found = attribute_words(model, text, word=str(number), by="gradients")
        assert found.probability == pytest.approx(model.predict(text).probabilities[number - 1], abs=1e-5)
        assert found.completeness_error < 0.02
        spans = [(word.start, word.end) for word in found.words]
        assert len(spans) < 32
        (index,) = [index for index, (start, _) in enumerate(spans) if len(text[:start].split()) == number - 1]
        assert text[slice(*spans[index])] == ["old", "the", "house", "was"][number % 4]


def test_answers_and_no_answer() -> None:
    from tests.tasks.test_answer import items

    model = keel.finetune(
        "bert", items(400, unanswerable=0.3), task="answer", **BLOCK | {"layers": 2, "lr": 3e-3, "epochs": 12}, **RUN
    )
    passage = "Anna lives in Oslo . Ben lives in Rome . Carl lives in Lima ."
    for question in ("Where does Ben live ?", "Where does Zoe live ?"):
        predicted = model.predict((passage, question))
        found = attribute_words(model, passage, question)
        assert found.prediction == (predicted.text or "no answer")
        assert [each.name for each in found.texts] == ["question", "passage"]
        assert [word.word for word in found.words if word.text == 0] == question.split()
        assert "".join(word.word for word in found.words if word.text == 1) == passage.replace(" ", "")
        assert found.completeness_error < 0.02
        assert found.probability
        assert 0 < found.probability <= 1
    long = " ".join([passage] * 6)  # several windows
    found = attribute_words(model, long, "Where does Ben live ?", by="occlusion")
    inside = [word for word in found.words if word.text == 1]
    assert 0 < len(inside) < len(long.split())
    with pytest.raises(UsageError, match="leave it out"):
        attribute_words(model, passage, "Where ?", label="x")


@pytest.mark.parametrize("name", ["rnn", "word2vec"])
def test_no_answer_of_a_reader_without_cls_is_complete(name: str) -> None:
    """Its score is computed from states through which no gradient flows in training."""
    from tests.tasks.test_answer import items

    model = keel.finetune(name, items(60, unanswerable=0.5), task="answer", width=16, epochs=2, **RUN)
    passage, question = "Anna lives in Oslo . Ben lives in Rome .", "Where does Zoe live ?"
    assert isinstance(model.task, SpanAnswering)
    for threshold in (-100.0, 100.0):
        model.task.null_threshold = threshold
        found = attribute_words(model, passage, question, by="gradients")
        assert (found.prediction == "no answer") == (threshold < 0)
        assert max(abs(word.attribution) for word in found.words) > 0
        assert found.completeness_error < 0.02


def test_numbers_are_explained() -> None:
    rows = [
        (text, round((label == "good") + number / 1000, 3))
        for number, (text, label) in enumerate(sentences(120, LABELS[:2]))
    ]
    model = keel.finetune("bert", rows, task="classify", **BLOCK, **RUN)
    found = attribute_words(model, "the film was wonderful", curves=True)
    assert (found.probability, found.target) == (None, "the predicted number")
    assert found.ranked()[0].word == "wonderful"
    assert found.score == pytest.approx(float(model.predict("the film was wonderful")), abs=1e-4)
    with pytest.raises(UsageError, match="predicts a number"):
        attribute_words(model, "the film", label="good")


def test_what_cannot_be_explained_is_refused_in_one_sentence(
    planted: Callable[[str], Model], tokenizer: Tokenizer
) -> None:
    bert = planted("bert")
    untrained = Model(system=bert.system, encoder=bert.encoder, tokenizer=bert.tokenizer)
    cases: list[tuple[Model, dict[str, Any], str]] = [
        (untrained, {}, "has no task"),
        (bert, {"label": "great"}, "choose one of 'bad', 'good', 'odd'"),
        (bert, {"word": "film"}, "for models that tag words"),
        (bert, {"second": "a film"}, "give one text"),
        (planted("onehot"), {"baseline": "mask"}, "counts words"),
        (bert, {"text": " \n"}, "no words"),
    ]
    for model, settings, part in cases:
        with pytest.raises(UsageError, match=part) as error:
            attribute_words(model, **{"text": "the film was strange", **settings})
        assert "\n" not in str(error.value)
    examples = read_examples([("a", "good"), ("b", "bad")], pair=False)
    choose = TASKS["choose"](bert.system, bert.encoder, bert.tokenizer, examples.labels)
    with pytest.raises(UsageError, match="was fine-tuned for choose"):
        attribute_words(Model(system=bert.system, encoder=bert.encoder, tokenizer=bert.tokenizer, task=choose), "a")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(Corpus.of(["the quick brown foxes jumped over it's lazy dogs"] * 3), kind="bpe", size=300)


def test_subwords_belong_to_words(tokenizer: Tokenizer) -> None:
    text = "The quickest fox, it's\n 中国人!"
    encoding = tokenizer.encode(text)
    words, owners = split_text(text, encoding.offsets)
    assert [text[start:end] for start, end in words] == ["The", "quickest", "fox", ",", "it's", "中", "国", "人", "!"]
    assert len(owners) == len(encoding.ids) > len(words)
    assert {*owners.tolist()} <= {*range(-1, len(words))}
    for owner, (start, end) in zip(owners.tolist(), encoding.offsets, strict=True):
        if text[start:end].strip():
            assert words[owner][0] < end
            assert words[owner][1] > start


def test_words_that_share_a_token_are_one() -> None:
    words, owners = split_text("中国人 ok", [(0, 2), (2, 3), (4, 6)])
    assert words == [(0, 2), (2, 3), (4, 6)]
    assert owners.tolist() == [0, 1, 2]


def test_chinese_by_words() -> None:
    pytest.importorskip("jieba")
    text = "我爱北京"
    words, owners = split_text(text, [(n, n + 1) for n in range(4)], chinese_words=True)
    assert [text[start:end] for start, end in words][-1] == "北京"
    assert owners.tolist()[-2:] == [len(words) - 1] * 2


def test_log_odds_of_a_softmax() -> None:
    logits = torch.tensor([[1.0, 2.0, -1.0]])
    p = logits.softmax(1)[0, 1]
    assert float(log_odds(logits, 1)) == pytest.approx(float((p / (1 - p)).log()), abs=1e-6)


def test_curves_of_a_known_score() -> None:
    """The probability is the share of three words that are seen, weighted 0.6, 0.3, 0.1."""

    class Known:
        texts, target, baseline, tokens = (), None, "", 3
        words = (0, 1, 2)

        def occlude(self, occluded: np.ndarray) -> Any:
            seen = (~occluded * [0.3, 0.6, 0.1]).sum(1)
            return type("Scored", (), {"scores": seen, "probabilities": seen})

    known: Any = Known()
    curves = ranking_curves(known, np.array([0.3, 0.6, 0.1]))
    np.testing.assert_allclose(curves.shares, [0, 1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(curves.deletion, [1, 0.4, 0.1, 0], atol=1e-9)
    np.testing.assert_allclose(curves.insertion, [0, 0.6, 0.9, 1], atol=1e-9)
    assert curves.beats_random
    assert not ranking_curves(known, np.array([-0.3, -0.6, -0.1])).beats_random


def explanation(**changes: Any) -> Explanation:
    from keel.explain.attributions.prediction_layouts import NamedText
    from keel.explain.attributions.word_attributions import WordAttribution

    text = "a <script>alert(1)</script> & 中文 film" + " x" * 60
    spans = split_text(text, [])[0]
    words = [
        WordAttribution(text[start:end], (-1.0) ** number / (number + 1), 0, start, end)
        for number, (start, end) in enumerate(spans)
    ]
    curves = Curves([0.0, 1.0], [0.9, 0.1], [0.1, 0.9], [0.9, 0.1], [0.1, 0.9], [(0.5, 0.5)])
    values: dict[str, Any] = {
        "model": "<b>m</b>", "task": "classify", "by": "gradients", "prediction": "<i>", "target": "log-odds of '<i>'",
        "probability": 0.9, "texts": (NamedText("text", text),), "words": words, "score": 2.0, "baseline": "[MASK]",
        "baseline_score": -1.0, "steps": 64, "passes": 66, "tokens": 80, "curves": curves,
    }  # fmt: skip
    return Explanation(**values | changes)


def test_lines_fit_the_terminal_and_bars_are_signed() -> None:
    found = explanation()
    lines = found.lines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:2] == ["a", "+1.000"] and line.endswith("|" + "+" * 24) for line in lines)
    assert any(line.split()[:2] == ["<", "-0.500"] and line.endswith("-" * 12 + "|") for line in lines)
    assert sum("|" in line for line in lines) == 40
    assert {field.name for field in fields(Explanation)} - {"curves"} <= {*found.to_dict()}


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_figures_show_user_text_as_text(suffix: str, tmp_path: Path) -> None:
    from xml.etree import ElementTree

    found = explanation()
    path = write_explanation(tmp_path / f"figure{suffix}", found)
    page = path.read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "中" in page
    assert "random order" in page
    if suffix == ".svg":
        root = ElementTree.fromstring(page)
        shown = "".join("".join(each.itertext()) for each in root.iter() if each.tag.endswith("}text"))
        assert "alert" in shown
        width = float(root.attrib["viewBox"].split()[2])
        ends = [float(each.get("x", 0)) + float(each.get("textLength", 0)) for each in root.iter()]
        assert max(ends) <= width


def test_texts_of_figures_are_whole() -> None:
    from keel.report.attribution_figure import text_parts

    (text,) = coloured_texts(explanation())
    assert "".join(part for part, _ in text_parts(text)) == text.text
