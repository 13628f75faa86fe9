"""Probing curves show what layers can know, on data whose answer is known; vectors equal those of transformers."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import keel
from keel.data.probing_data import ProbedText, ProbingData, SpanLabels
from keel.data.probing_files import read_probing_data
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.explain.layers.layer_features import layer_features, random_twin
from keel.explain.layers.layer_probing import control_labels
from keel.explain.layers.probe_curves import ProbeCurve, probe_scores
from keel.metrics.bootstrap import Score
from keel.model import Model
from keel.systems.system import System

WORDS = [f"w{number}" for number in range(12)]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def model_of(system: System, words: Sequence[str] = WORDS, seed: int = 0) -> Model:
    """A model with random weights."""
    tokenizer = Tokenizer.from_words([*words])
    torch.manual_seed(seed)
    return Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer)


def write_columns(path: Path, sentences: int, seed: int) -> Path:
    """Random words with the class of the word, the class of the word before it, and a random class."""
    rng = random.Random(seed)
    lines = []
    for _ in range(sentences):
        numbers = [rng.randrange(len(WORDS)) for _ in range(9)]
        for before, number in zip([0, *numbers], numbers, strict=False):
            lines.append(f"{WORDS[number]}\tS{number % 3}\tB{before % 3}\tR{rng.randrange(3)}")
        lines.append("")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("columns")
    return write_columns(folder / "train.txt", 160, 0), write_columns(folder / "test.txt", 80, 1)


@pytest.mark.parametrize(
    "system",
    [
        keel.Rnn(width=48, layers=2),
        keel.Gpt(layers=2, width=48, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0),
    ],
    ids=lambda system: system.name,
)
def test_layers_show_what_they_can_know(system: System, columns: tuple[Path, Path]) -> None:
    found = keel.probe_layers(
        model_of(system), train=columns[0], test=columns[1], probe=("own=2", "before=3", "noise=4"), control=True
    )
    own, before, noise = found.curves
    assert found.layers == [0, 1, 2]
    assert [each.task for each in found.curves] == ["own", "before", "noise"]
    assert (own.unit, own.classes, own.train, own.test, own.unseen) == ("word", 3, 160 * 9, 80 * 9, 0)
    # The label is the word itself: the embeddings know it, and random labels of words too, so selectivity is low.
    assert own.score(0).value == 1.0
    assert own.best == 0
    assert own.control is not None
    assert own.control[0].value == 1.0
    assert own.selectivity is not None
    assert own.selectivity[0].value == 0.0
    # The label depends on the word before: only layers with context can know it.
    assert (before.score(0).low or 1) < before.majority + 0.02
    assert before.score(0).value < before.majority + 0.08
    assert before.score(1).value > before.majority + 0.2
    assert before.selectivity is not None
    assert before.selectivity[0].value < -0.5  # the words' own labels are known there
    # Nobody knows a random label.
    assert all(abs(score.value - noise.majority) < 0.1 for score in noise.scores)


def test_random_twin_has_the_architecture_and_a_seed_of_its_own(columns: tuple[Path, Path]) -> None:
    model = model_of(keel.Rnn(width=16, layers=1))
    before = torch.random.get_rng_state()
    twins = [random_twin(model, seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.random.get_rng_state(), before)
    first, same, other = (twin.encoder.state_dict() for twin in twins)
    assert first.keys() == model.encoder.state_dict().keys()
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["words.weight"], other["words.weight"])
    assert not torch.equal(first["words.weight"], model.encoder.state_dict()["words.weight"])
    with torch.no_grad():
        model.encoder.get_parameter("words.weight").zero_()  # so that the model knows nothing, but its twin does
    found = keel.probe_layers(model, train=columns[0], test=columns[1], probe=("own=2",), random=True)
    (curve,) = found.curves
    assert curve.random is not None
    assert curve.random[0].value == 1.0
    assert curve.score(0).value < 0.5
    again = keel.probe_layers(model, train=columns[0], test=columns[1], probe=("own=2",), random=True)
    assert again.to_dict() == found.to_dict()


def test_span_pairs_of_two_texts_compare_their_words() -> None:
    rng = random.Random(0)
    records = []
    for _ in range(900):
        one, other = rng.choice(WORDS), rng.choice(WORDS)
        same = rng.random() < 0.5
        records.append(
            {
                "text": f"w0 {one} w1",
                "text2": f"{one if same else other} w5",
                "span1": [3, 3 + len(one)],
                "span2": [0, len(one if same else other)],
                "label": "same" if same or one == other else "other",
            }
        )
    model = model_of(keel.Rnn(width=64, layers=1))
    (curve,) = keel.probe_layers(model, train=records[:600], test=records[600:]).curves
    assert (curve.task, curve.unit) == ("spans", "pair")
    assert curve.score(0).value > 0.9  # [a; b] alone could not know it


# Vectors


def data_of(texts: list[ProbedText], spans: list[tuple[int, int, int]]) -> ProbingData:
    task = SpanLabels(spans=np.arange(len(spans))[:, None], labels=["x"] * len(spans), types=["x"] * len(spans))
    return ProbingData(source="the list", texts=texts, spans=np.array(spans), tasks={"task": task}, known=("task",))


def shapes() -> dict[str, tuple[Any, Any]]:
    small: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
    more: dict[str, Any] = {"vocab_size": 12, "intermediate_size": 32, "max_position_embeddings": 24}
    return {
        "bert": (transformers.BertModel, transformers.BertConfig(**small, **more)),
        "electra": (transformers.ElectraModel, transformers.ElectraConfig(**small, **more, embedding_size=16)),
    }


@pytest.mark.parametrize("name", ["bert", "electra"])
def test_vectors_equal_hidden_states_of_transformers(name: str, tmp_path: Path) -> None:
    kind, config = shapes()[name]
    torch.manual_seed(0)
    peer = kind(config).eval()
    peer.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, "the", "doctor", "ask", "##ed", "nurse", "she", "a"]))
    model = Model.load(tmp_path, device="cpu")
    texts = [ProbedText("", ("the", "doctor", "asked", "she")), ProbedText("the nurse asked a doctor")]
    data = data_of(texts, [(0, 0, 1), (0, 2, 3), (0, 0, 4), (1, 4, 15), (1, 16, 17)])
    found = layer_features(model, data, lambda event: None)
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path)
    expected = []
    for text, (first, end) in [(0, (1, 2)), (0, (3, 5)), (0, (1, 6)), (1, (2, 5)), (1, (5, 6))]:
        inputs = tokenizer(["the doctor asked she", "the nurse asked a doctor"][text], return_tensors="pt")
        with torch.no_grad():
            states = peer(**inputs, output_hidden_states=True).hidden_states
        expected.append(torch.stack([state[0, first:end].mean(0) for state in states]))
    assert found.vectors.shape == (3, 5, 16)
    assert (found.vectors.float() - torch.stack(expected, 1)).abs().max() < 2e-3
    assert found.index.tolist() == [*range(5)]


def test_gpt2_of_transformers_is_probed(tmp_path: Path, english_corpus: Path) -> None:
    tokenizer = Tokenizer.train(keel.Corpus([english_corpus]), kind="bpe", size=300)
    tokenizer.save(tmp_path)
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_layer=2, n_head=2, n_embd=16, n_positions=32)
    torch.manual_seed(0)
    peer = transformers.GPT2LMHeadModel(config).eval()
    peer.save_pretrained(tmp_path)
    model = Model.load(tmp_path, device="cpu")
    found = layer_features(model, data_of([ProbedText("the farmer is kind")], [(0, 4, 10)]), lambda event: None)
    encoding = tokenizer.encode("the farmer is kind")
    inside = [i for i, (start, end) in enumerate(encoding.offsets) if start < 10 and end > 4]
    ids = model.system.build_inputs(tokenizer, encoding.ids).ids
    with torch.no_grad():
        states = peer(torch.tensor([ids]), output_hidden_states=True).hidden_states
    expected = torch.stack([state[0, [i + 1 for i in inside]].mean(0) for state in states])
    assert (found.vectors[:, 0].float() - expected).abs().max() < 2e-3


def test_elmo_is_probed(columns: tuple[Path, Path]) -> None:
    system = keel.Elmo(width=16, cell_size=24, character_filters=(8, 8), character_dim=6, highway_layers=1)
    found = keel.probe_layers(model_of(system), train=columns[0], test=columns[1], probe=("own=2",), examples=300)
    assert found.layers == [0, 1, 2]
    assert found.curves[0].score(0).value > 0.9  # characters


def test_long_texts_are_read_in_windows_and_too_long_spans_are_counted() -> None:
    system = keel.Bert(layers=1, width=16, head_dim=16, max_positions=12, sequence_length=12, dropout=0.0)
    model = model_of(system)
    words = tuple(WORDS[number % 12] for number in range(40))
    notes: list[str] = []
    data = data_of([ProbedText("", words)], [(0, 20, 21), (0, 0, 39), (0, 39, 40)])
    found = layer_features(model, data, lambda event: notes.append(event["text"]))
    assert found.index.tolist() == [0, -1, 1]
    assert len(notes) == 1
    assert "1 span of 3" in notes[0]
    # The word in the middle is read in the window where it has most context.
    room = system.max_text_length(model.tokenizer)
    near = data_of([ProbedText("", words[16 : 16 + room])], [(0, 4, 5)])
    windows = [layer_features(model, near, lambda event: None).vectors[1, 0].float()]
    for start in range(11, 21):
        part = data_of([ProbedText("", words[start : start + room])], [(0, 20 - start, 21 - start)])
        windows.append(layer_features(model, part, lambda event: None).vectors[1, 0].float())
    distances = [(each - found.vectors[1, 0].float()).abs().max() for each in windows]
    assert min(distances) < 2e-3


@pytest.mark.parametrize("name", ["word2vec", "onehot"])
def test_models_of_one_layer_are_refused(name: str, columns: tuple[Path, Path]) -> None:
    system = {"word2vec": keel.Word2vec(width=8), "onehot": keel.Onehot()}[name]
    with pytest.raises(UsageError, match="several layers"):
        keel.probe_layers(model_of(system), train=columns[0])


# Control tasks and scores


def test_control_labels_are_those_of_the_type_from_the_distribution_of_labels() -> None:
    types = [f"word {number}" for number in range(4000)]
    shares = np.cumsum([0.7, 0.2, 0.1])
    found = control_labels(types, shares, "key")
    assert (control_labels([*reversed(types)], shares, "key")[::-1] == found).all()
    assert np.bincount(found) / 4000 == pytest.approx([0.7, 0.2, 0.1], abs=0.03)
    assert (control_labels(types, shares, "other key") != found).mean() > 0.3


def test_intervals_resample_texts_and_selectivity_is_paired() -> None:
    correct = np.array([[True] * 50 + [False] * 50])
    clustered = probe_scores(correct, None, None, np.arange(100) // 50)["scores"][0]
    assert (clustered.low, clustered.high) == (0.0, 1.0)  # two texts, all or nothing
    single = probe_scores(correct, correct, ~correct, np.arange(100))
    assert 0.35 < (single["scores"][0].low or 0) < 0.5
    assert (single["selectivity"][0].value, single["selectivity"][0].low, single["selectivity"][0].high) == (0, 0, 0)
    assert probe_scores(correct, None, None, np.zeros(100))["scores"][0].low is None


def test_expected_layer_weighs_what_each_layer_adds() -> None:
    def expected(*values: float) -> float | None:
        scores = [Score(value=value, low=None, high=None) for value in values]
        shape: dict[str, Any] = {"classes": 2, "train": 9, "test": 9, "unseen": 0, "majority": 0.5, "l2": []}
        layers = [*range(len(values))]
        return ProbeCurve(task="t", source="s", unit="word", layers=layers, scores=scores, **shape).expected_layer

    assert expected(0.5, 0.7, 0.6, 0.9) == pytest.approx((1 * 0.2 + 3 * 0.2) / 0.4)
    assert expected(0.9, 0.7, 0.6) is None


def test_unseen_labels_count_as_errors(tmp_path: Path) -> None:
    train, test = tmp_path / "train.txt", tmp_path / "test.txt"
    train.write_text("\n".join(["w0\tA", "w1\tB", ""] * 20))
    test.write_text("\n".join(["w0\tA", "w1\tC", ""] * 10))
    found = keel.probe_layers(model_of(keel.Rnn(width=8, layers=1)), train=train, test=test)
    (curve,) = found.curves
    assert (curve.unseen, curve.score(0).value, curve.majority) == (10, 0.5, 0.5)


def test_treebank_is_probed(data_dir: Path, tmp_path: Path) -> None:
    """Real text: even random embeddings know parts of speech and relations far better than the majority."""
    folder = data_dir / "tasks" / "ud_english_ewt"
    files: dict[str, Any] = {"train": folder / "en_ewt-ud-dev.conllu.xz", "test": folder / "en_ewt-ud-test.conllu.xz"}
    corpus = tmp_path / "text.txt"
    sample, _ = read_probing_data(files["train"], files["test"], ("upos",), examples=6000)
    corpus.write_text("\n\n".join(" ".join(text.words) for text in sample.texts), encoding="utf-8")
    tokenizer = Tokenizer.train(keel.Corpus([corpus]), kind="wordpiece", size=3000)
    system = keel.Bert(layers=1, width=64, max_positions=128, sequence_length=128, dropout=0.0)
    torch.manual_seed(0)
    model = Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer)
    found = keel.probe_layers(model, **files, probe=("upos", "deprel", "arc", "Number"), examples=2500)
    upos, deprel, arc, number = found.curves
    for curve in (upos, deprel, arc):
        assert (curve.score(0).low or 0) > curve.majority + 0.2
    assert number.train < arc.train < upos.train <= 2500  # words with a number, words with a head, all words
    assert [curve.unit for curve in (upos, deprel, arc, number)] == ["word", "word", "pair", "word"]


def test_figure_has_a_panel_per_task(columns: tuple[Path, Path], tmp_path: Path) -> None:
    model = model_of(keel.Rnn(width=8, layers=1))
    files: dict[str, Any] = {"train": columns[0], "test": columns[1]}
    found = keel.probe_layers(model, **files, control=True, random=True, out=tmp_path / "curves.html")
    page = (tmp_path / "curves.html").read_text(encoding="utf-8")
    for curve in found.curves:
        for name, scores in (("task", curve.scores), ("control task", curve.control), ("random weights", curve.random)):
            assert scores is not None
            for layer, score in zip(curve.layers, scores, strict=True):
                assert f"<title>{curve.task}, {name}, layer {layer}: {score.value:.1%}</title>" in page
    keel.probe_layers(model, **files, out=tmp_path / "curves.svg")
    picture = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert picture.count('font-weight="600"') == len(found.curves)
    assert "control task" not in picture
