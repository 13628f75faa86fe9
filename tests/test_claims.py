"""Pages and experiments belong together, and what runs in seconds is run."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import keel
from keel import claims
from keel.claims import CLAIMS, layer_claims, small_models
from keel.claims.claim import Say
from keel.demo.docstrings import Docstring
from keel.errors import UsageError
from keel.events import Event, ignore

PAGES = {int(path.stem): path for path in (Path(__file__).parent.parent / "docs" / "claims").glob("[0-9]*.md")}
FAST = [number for number, claim in CLAIMS.items() if claim.minutes <= 0.2]


def test_every_experiment_has_a_page_and_every_page_an_experiment() -> None:
    assert PAGES.keys() == CLAIMS.keys()


@pytest.mark.parametrize("number", PAGES)
def test_a_page_gives_its_command_and_says_what_was_seen(number: int) -> None:
    text = PAGES[number].read_text(encoding="utf-8")
    assert PAGES[number].name == f"{number:03}.md"
    assert text.startswith(f"# {number}. {CLAIMS[number].title}\n")
    assert f"    keel claim {number}\n" in text
    for section in ("What the sources say", "What we run", "What was seen"):
        assert f"## {section}\n" in text
    seen = text.partition("## What was seen\n")[2]
    assert re.search(r"\d", seen), "figures that were measured"
    assert ("minutes" in text) == (CLAIMS[number].minutes > 0.2), "a page says whether it takes long"


FALSE = (55, 93)
"""Each layer has its own K and V, and [CLS] may not stand anywhere: these experiments must say so."""


@pytest.mark.parametrize("number", FAST)
def test_what_runs_in_seconds_finds_what_its_page_says(number: int) -> None:
    heard: list[Event] = []
    finding = claims.run(number, on_event=heard.append)
    assert finding is not None
    assert finding.holds == (number not in FALSE)
    assert len(finding.rows) > 1
    assert [event["text"] for event in heard if event["event"] == "row"] == finding.lines()
    assert finding.lines()[-1] == str(finding)
    assert heard[0]["text"] == f"{number}. {CLAIMS[number].title}"
    page = PAGES[number].read_text(encoding="utf-8")
    assert ("**Holds**" in page, "**Does not hold**" in page) == (finding.holds, not finding.holds)


@pytest.mark.parametrize(
    ("wrong", "holds"),
    [
        ({"parts of speech": (0, 60), "senses": (60, 0)}, True),
        ({"parts of speech": (0, 60), "senses": (2, 1)}, None),  # one answer more is no difference
        ({"parts of speech": (0, 60), "senses": (0, 60)}, False),
    ],
)
def test_layers_differ_for_both_tasks_beyond_chance_or_it_is_not_decided(
    wrong: dict[str, tuple[int, int]], holds: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {name: layer_claims.Question([], [], [number % 4 // 2 for number in range(600)]) for name in wrong}

    def features(_: object, question: layer_claims.Question) -> torch.Tensor:
        told = 2.0 * torch.tensor(question.answers) - 1
        found = torch.stack([torch.ones(600), told, told], 1)
        mistaken = next(wrong[name] for name, each in asked.items() if each is question)
        for layer, count in enumerate(mistaken, 1):
            found[1 : 2 * count : 2, layer] *= -1  # of those that nobody learns from
        return found[..., None] + torch.randn(600, 3, 4, generator=torch.Generator().manual_seed(0)) / 100

    monkeypatch.setattr(layer_claims, "_world", lambda: (None, asked))
    monkeypatch.setattr(layer_claims, "_features", features)
    finding = layer_claims.which_layer(Say(ignore))
    assert finding.holds is holds
    assert "layer 1 alone is 20.0 (15.7 to 24.7) points above layer 2 in parts of speech" in finding.figures
    if holds is False:
        assert "layer 2 alone 20.0 (15.7 to 24.7) points below layer 1 in senses" in finding.figures


def test_a_model_is_kept_for_its_text_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[Path] = []

    def pretrain(system: keel.Bert, corpus: keel.Corpus, *, out: Path, **_: object) -> None:
        learned.append(out)
        out.mkdir(parents=True)
        (out / "config.json").write_text("{}")

    monkeypatch.setattr(keel, "pretrain", pretrain, raising=False)
    monkeypatch.setattr(keel.Model, "load", lambda folder: folder)
    heard: list[Event] = []
    say = Say(heard.append)
    texts = [[Docstring("numpy", (f"Sentence {n} of {name}.", "Another one.")) for n in range(9)] for name in "ab"]
    first = small_models.learn_docstrings(texts[0], next_sentence=True, say=say)
    assert small_models.learn_docstrings(texts[0], next_sentence=True, say=say) == first == learned[-1]
    small_models.learn_docstrings(texts[1], next_sentence=True, say=say)
    small_models.learn_docstrings(texts[0], next_sentence=False, say=say)
    small_models.learn_docstrings(texts[0], next_sentence=True, say=say, steps=700)
    monkeypatch.setattr(small_models, "SMALL", replace(small_models.SMALL, width=64))
    small_models.learn_docstrings(texts[0], next_sentence=True, say=say)
    assert len(learned) == len(set(learned)) == 5
    assert len(heard) == 5
    assert not say.rows, "what is done on the way is no result"


def test_each_order_of_ngrams_is_counted(monkeypatch: pytest.MonkeyPatch, english_corpus: Path) -> None:
    texts = english_corpus.read_text(encoding="utf-8").split("\n\n")
    docstrings = [Docstring("numpy", tuple(text.splitlines())) for text in texts]
    monkeypatch.setattr("keel.claims.language_model_claims.read_docstrings", lambda say: docstrings)
    finding = claims.run(27)
    assert finding is not None
    assert [row.split(":")[0] for row in finding.rows] == [f"order {order}" for order in range(1, 6)]
    assert "could come up" in finding.rows[0]


def test_without_a_number_all_are_listed() -> None:
    said: list[str] = []
    assert claims.run(on_event=lambda event: said.append(event["text"])) is None
    for number, claim in CLAIMS.items():
        assert any(str(number) in line and claim.title in line for line in said)
    for number, time in ((1, "seconds"), (19, "half a minute"), (31, "1 minute"), (59, "2 minutes")):
        assert any(line.startswith(f"{number:4} ") and line.endswith(f"({time})") for line in said)


def test_vectors_that_a_claim_learns_are_called_what_they_are() -> None:
    assert small_models.learn_words(["a bank"] * 9, keel.Word2vec(width=4), epochs=1).card.title == "word2vec"


def test_an_unknown_number_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match=r"nearest is 6 \(.*`keel claim` lists"):
        claims.run(7)


def test_a_model_of_one_s_own_is_asked_where_it_can_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"leave out model and data \(69 can take them\)"):
        claims.run(41, model=tmp_path)
    system = keel.Rnn(width=8, layers=2, dropout=0.0)
    tokenizer = keel.Tokenizer.from_words(["the", "dog", "barks", "a", "bank"])
    model = keel.Model(system=system, encoder=system.build_encoder(len(tokenizer)).eval(), tokenizer=tokenizer)
    with pytest.raises(UsageError, match="give data FOLDER"):
        claims.run(69, model=model)
    with pytest.raises(UsageError, match=r"has no file \*train\*\.conllu"):
        claims.run(69, model=model, data=tmp_path)
    (tmp_path / "ud_english_ewt").mkdir()
    words = ["1\tThe\tthe\tDET", "2\tdog\tdog\tNOUN", "3\tbarks\tbark\tVERB"]
    (tmp_path / "ud_english_ewt" / "en-train.conllu").write_text("\n".join(["# a comment", *words, "\n"]) * 40)
    (tmp_path / "wic" / "train").mkdir(parents=True)
    (tmp_path / "wic" / "train" / "train.data.txt").write_text("bank\tN\t1-2\tthe bank\tthe dog bank\n" * 40)
    (tmp_path / "wic" / "train" / "train.gold.txt").write_text("T\nF\nT\nT\n" * 10)
    finding = claims.run(69, model=model, data=tmp_path)
    assert finding is not None
    assert finding.rows[0].startswith("parts of speech: weights ")
    assert finding.rows[1].startswith("senses: weights ")


@pytest.mark.parametrize("number", [81, 82, 83, 84])
@pytest.mark.usefixtures("_writer")
def test_what_is_asked_of_a_writer_is_counted(number: int) -> None:
    finding = claims.run(number)
    assert finding is not None
    assert len(finding.rows) > 2
    assert re.search(r"\d", finding.figures)


@pytest.fixture
def _writer(monkeypatch: pytest.MonkeyPatch, english_corpus: Path, tmp_path: Path) -> None:
    """A GPT that has learned next to nothing, in place of the one that the experiments ask."""
    texts = english_corpus.read_text(encoding="utf-8").replace("\n\n", "\0").replace("\n", " ").split("\0")
    docstrings = [Docstring("numpy", tuple(re.split(r"(?<=[.?!]) ", text))) for text in texts]
    system = replace(small_models.WRITER, layers=1, width=16, head_dim=16, max_positions=512, sequence_length=512)
    model = keel.pretrain(system, english_corpus, out=tmp_path / "m", vocabulary=600, steps=2, batch=2, device="cpu")
    monkeypatch.setattr("keel.claims.prompting_claims.read_docstrings", lambda say: docstrings)
    monkeypatch.setattr("keel.claims.prompting_claims.learn_to_write", lambda docstrings, say: model)
