"""`keel bias`: each kind of model gets what it supports, and each mistake one sentence."""

import json
from pathlib import Path

import numpy as np
import pytest

import keel
from keel.cli import main
from keel.errors import KeelError, UsageError
from keel.explain.bias.bias_report import CAUTION
from keel.explain.bias.bias_templates import read_templates
from keel.formats.vector_files import Vectors, write_vectors

TEXTS = ["the nurse said that she would come later .", "the doctor said that he would come later ."] * 10


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of all our English words, the first occupations, family and arts near to she."""
    given = read_templates("en")
    sets = [words for pair in given.word_sets.values() for words in pair]
    words = [*given.occupations, *(word for side in sets for word in side)]
    words += [word for pair in given.gender_pairs for word in pair]
    positive = {*given.occupations[:20], *sets[0], *sets[2], *(pair[0] for pair in given.gender_pairs)}
    matrix = np.random.default_rng(0).normal(size=(len(words), 20)).astype(np.float32)
    matrix[:, 0] += [4 if word in positive else -4 for word in words]
    path = tmp_path_factory.mktemp("vectors") / "planted.vec"
    write_vectors(path, Vectors(words, matrix), layout="text")
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    system = keel.Bert(layers=2, width=16, head_dim=8, max_positions=96, sequence_length=96)
    out = tmp_path_factory.mktemp("bert") / "m"
    settings = {"tokenizer": "wordpiece", "vocabulary": 80, "steps": 1, "batch": 2, "device": "cpu"}
    keel.pretrain(system, TEXTS, out=out, **settings)  # pyright: ignore[reportArgumentType]
    return out


def test_word_vectors_get_a_direction_and_tests(vectors: Path, tmp_path: Path) -> None:
    found = keel.bias(vectors, out=tmp_path / "bias.html")
    (scores,) = found.scores
    assert scores.toward == (20, 20)
    assert [test.p < 0.001 for test in found.tests] == [True, True]
    assert found.attention is None
    html = (tmp_path / "bias.html").read_text(encoding="utf-8")
    assert html.count("<circle") == 40
    assert "family / career" in html
    assert CAUTION in html
    assert json.loads(json.dumps(found.to_dict()))["tests"][0]["exact"] is True


def test_a_bert_gets_log_odds_and_attention(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.txt").write_text("nurse\ndoctor\n")
    (tmp_path / "sentences.txt").write_text(
        "the {occupation} said that {pronoun} would come\nthe {occupation} said {pronoun} come\n"
        "the {first} said the {second} would and {pronoun} would come\n"
    )
    line = ["bias", "--model", str(bert), "--occupations", str(tmp_path / "jobs.txt")]
    line += ["--templates", str(tmp_path / "sentences.txt"), "--out", str(tmp_path / "bias.svg")]
    assert main([*line, "--json"]) == 0
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert [each["method"] for each in data["scores"]] == ["masked"]
    assert {each["occupation"] for each in data["scores"][0]["occupations"]} == {"nurse", "doctor"}
    assert np.array(data["attention"]["contrast"]).shape == (2, 2)
    assert "templates: en" in printed.err
    assert (tmp_path / "bias.svg").read_text().count("<circle") == 2
    assert main(line) == 0
    out = capsys.readouterr().out
    assert "interval without 0" in out
    assert "layer 2 head" in out
    assert max(len(row) for row in out.splitlines()) <= 100
    assert main([*line, "--by", "attention"]) == 0
    assert "log-odds" not in capsys.readouterr().out
    assert (tmp_path / "bias.svg").read_text().count("<rect") >= 4


def test_a_causal_language_model_and_other_pronouns(tmp_path: Path) -> None:
    model = keel.pretrain(keel.Ngram(), TEXTS * 2, out=tmp_path / "m", min_count=1, tokenizer="words")
    settings = {"occupations": ["nurse", "doctor"], "templates": tmp_path / "t.txt"}
    (tmp_path / "t.txt").write_text("the {occupation} said that {pronoun} would come later .\n" * 2)
    found = keel.bias(model, **settings)
    assert [each.occupation for each in found.scores[0].occupations] == ["nurse", "doctor"]
    turned = keel.bias(model, pronouns="he:she", **settings)
    assert [each.occupation for each in turned.scores[0].occupations] == ["doctor", "nurse"]
    assert turned.scores[0].method == "causal"


def test_the_language_follows_the_vocabulary(tmp_path: Path) -> None:
    texts = ["那个护士说她明天会来。", "那个医生说他明天会来。", "那个人走得很早。"] * 10
    system = keel.Bert(layers=1, width=16, head_dim=8, max_positions=64, sequence_length=32)
    model = keel.pretrain(system, texts, out=tmp_path / "m", tokenizer="characters", min_count=1, steps=1, batch=2)
    (tmp_path / "t.txt").write_text("那个{occupation}说{pronoun}明天会来。\n那个{occupation}说{pronoun}会来。\n")
    found = keel.bias(model, templates=tmp_path / "t.txt", by="masked")
    assert found.language == "zh"
    assert {each.occupation for each in found.scores[0].occupations} == {"护士", "医生"}


def test_without_a_language_model_head_attention_is_left(bert: Path, tmp_path: Path) -> None:
    settings = {"task": "classify", "dev": None, "steps": 1, "batch": 4, "device": "cpu"}
    labelled = [(text, str(number % 2)) for number, text in enumerate(TEXTS)]
    tuned = keel.finetune(bert, labelled, **settings)  # pyright: ignore[reportArgumentType]
    notes: list[dict] = []
    found = keel.bias(tuned, on_event=notes.append)
    assert found.scores == []
    assert found.attention is not None
    assert any("no language model head" in each["text"] for each in notes)
    with pytest.raises(UsageError, match="it supports attention"):
        keel.bias(tuned, by="masked")
    onehot = keel.pretrain(keel.Onehot(), TEXTS, out=tmp_path / "o", min_count=1)
    with pytest.raises(KeelError, match="no attention and no word vectors"):
        keel.bias(onehot)


def test_words_are_looked_up_as_the_tokenizer_normalizes_them() -> None:
    found = keel.bias("english-words", by="vectors", occupations=["Café", "nurse"])
    assert {each.occupation for each in found.scores[0].occupations} == {"Café", "nurse"}


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--pronouns", "she"], 2, "no pair of words"),
        (["--pronouns", "xyzzy:he"], 1, "no pair of words for a direction"),
        (["--by", "masked"], 2, "it supports vectors"),
        (["--by", "all"], 2, "must be one of"),
        (["--language", "fr"], 2, "must be one of"),
        (["--language", "zh"], 1, "knows none of the occupations"),
        (["--occupations", "EMPTY"], 1, "is empty"),
        (["--occupations", "MISSING"], 1, "MISSING"),
        (["--templates", "EMPTY"], 1, "is empty"),
        (["--out", "bias.gif"], 2, "must end in"),
    ],
)
def test_mistakes_get_one_sentence(
    vectors: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("EMPTY").write_text("")
    assert main(["bias", "--model", str(vectors), *flags]) == code
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert sentence.startswith("keel: ")
    assert message in sentence
    assert "bug" not in sentence


def test_a_model_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("this is no model\n")
    assert main(["bias", "--model", str(tmp_path / "text.txt")]) in (1, 2)
    assert main(["bias", "--model", str(tmp_path / "missing")]) in (1, 2)
    assert "bug in Keel" not in capsys.readouterr().err


def test_without_a_model_the_bundled_encoder_is_used() -> None:
    notes: list[str] = []
    jobs = ["nurse", "sailor"]
    found = keel.bias(occupations=jobs, on_event=lambda event: notes.append(str(event.get("text", ""))))
    assert found.model == "english"
    assert found.language == "en"
    assert any(note.startswith("model: english,") for note in notes)
