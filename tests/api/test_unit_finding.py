"""Pre-training on units: phrases of the corpus, names of a file, entities of a tagging model; notes and errors."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import keel
from keel.api.unit_finding import ModelTagger
from keel.data.corpus import Corpus
from keel.data.predictions import TaggedText
from keel.data.token_store import Tokens
from keel.errors import Interrupted, KeelError, UsageError
from keel.events import Event

SMALL: dict[str, Any] = {"layers": 1, "width": 32, "head_dim": 16, "sequence_length": 24, "max_positions": 32}
QUICK: dict[str, Any] = {"steps": 4, "batch": 4, "vocabulary": 300, "threads": 1, "device": "cpu", **SMALL}
SENTENCES = [(["Anna", "Smith", "reads"], ["B-PER", "I-PER", "O"]), (["the", "judge", "reads"], ["O", "O", "O"])]


@pytest.fixture
def names(tmp_path: Path) -> Path:
    path = tmp_path / "names.txt"
    path.write_text("Anna\n小明\nAtlantis City\n亚特兰蒂斯\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that tags Anna Smith."""
    out = tmp_path_factory.mktemp("tagger") / "names"
    settings: dict[str, Any] = {"width": 16, "layers": 1, "head_dim": 16, "dropout": 0.0, "attention_dropout": 0.0}
    keel.finetune(
        keel.Bert(**settings, max_positions=32, sequence_length=32),
        SENTENCES * 20,
        task="tag",
        dev=None,
        out=out,
        train=keel.Train(epochs=10, batch=8, lr=2e-2, device="cpu"),
    )
    return out


def learn(corpus: Any, out: Path, system: Any = "ernie", **settings: Any) -> tuple[keel.Model, list[Event]]:
    events: list[Event] = []
    model = keel.pretrain(system, corpus, out=out, on_event=events.append, **(QUICK | settings))
    return model, events


def notes(events: list[Event]) -> list[str]:
    return [event["text"] for event in events if event["event"] == "note"]


def stored_tokens(out: Path, cache: Path) -> Tokens:
    """The tokens of the only run in a cache."""
    (folder,) = (cache / "tokens").iterdir()
    return Tokens.open(folder)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KEEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_phrases_and_names_become_units(
    english_corpus: Path, chinese_corpus: Path, names: Path, tmp_path: Path, cache: Path
) -> None:
    corpus = [english_corpus, chinese_corpus]
    _, events = learn(corpus, tmp_path / "m", phrases=2, entities=str(names))
    (word, phrase, entity) = stored_tokens(tmp_path / "m", cache).unit_lengths()
    assert 1 < word < phrase
    assert entity != phrase
    found = notes(events)
    assert any("phrases found, the most frequent:" in text for text in found)
    assert (
        f"masking units: mean length in tokens {word:.2f} (word), {phrase:.2f} (phrase), {entity:.2f} (entity)" in found
    )
    assert "2 of 4 entity names not found in the text: Atlantis City, 亚特兰蒂斯" in found
    phrases = (tmp_path / "m" / "run" / "phrases.txt").read_text(encoding="utf-8").splitlines()
    assert phrases == sorted(phrases)
    assert any(" " in each for each in phrases), "English"
    assert any("\u4e00" <= each[0] <= "\u9fff" for each in phrases), "Chinese"
    # Another run on the same text finds them in the cache, and tells of the names again.
    _, events = learn(corpus, tmp_path / "again", phrases=2, entities=str(names))
    assert not any("phrases found" in text for text in notes(events))
    assert any("not found in the text" in text for text in notes(events))
    assert len([*(cache / "tokens").iterdir()]) == 1


def test_phrases_are_units_of_any_tokenizer_not_tokens(english_corpus: Path, tmp_path: Path) -> None:
    for tokenizer in ("wordpiece", "bpe", "words"):
        model, _ = learn(english_corpus, tmp_path / tokenizer, phrases=1, tokenizer=tokenizer)
        assert not any(model.tokenizer.extra_rules.get("phrases", ()))
        assert (tmp_path / tokenizer / "run" / "phrases.txt").stat().st_size
    with pytest.raises(UsageError, match="phrases consist of words"):
        learn(english_corpus, tmp_path / "bert", "bert", phrases=1)


def test_a_model_finds_the_entities(tagger: Path, tmp_path: Path, cache: Path) -> None:
    corpus = Corpus.of([f"Anna Smith reads. The judge number {number} reads." for number in range(40)])
    model, _ = learn(corpus, tmp_path / "m", entity_model=str(tagger), held_out=0.0, vocabulary=100)
    tokens = stored_tokens(tmp_path / "m", cache)
    assert tokens.units is not None
    sentence = slice(*tokens.starts[:2])
    words = [model.tokenizer.token_of(number) for number in tokens.ids[sentence].tolist()]
    starts = (tokens.units[sentence] >> 2 & 1).tolist()
    entity = starts.index(0)
    joined = "".join(words[entity - 1 : len(starts) - starts[::-1].index(0)]).replace("##", "")
    assert joined == "annasmith"
    assert starts.count(1) < (tokens.units[sentence] >> 1 & 1).sum()


def test_the_fingerprint_of_a_tagger_includes_its_head(tagger: Path) -> None:
    first, second = (ModelTagger(keel.Model.load(tagger), "names") for _ in range(2))
    assert first.fingerprint() == second.fingerprint()
    assert second.model.task is not None
    with torch.no_grad():
        next(iter(second.model.task.classifier.parameters())).add_(1)
    assert first.fingerprint() != second.fingerprint()


def test_predicted_names_of_a_single_character_are_left_out(monkeypatch: pytest.MonkeyPatch, tagger: Path) -> None:
    model = keel.Model.load(tagger)
    found = TaggedText(text="A Berlin", words=("A", "Berlin"), tags=("B-PER", "B-LOC"), probabilities=(1.0, 1.0))
    monkeypatch.setattr(model, "predict", lambda texts: [found for _ in texts])
    assert ModelTagger(model, "names").find_entities(["A Berlin"]) == [[(2, 8)]]


def test_models_that_find_no_entities_are_refused(english_corpus: Path, tagger: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"task": "classify", "dev": None, "epochs": 1}
    keel.finetune("onehot", [("a", "x"), ("b", "y")] * 4, out=tmp_path / "classes", **settings)
    segmented = [(["船", "长"], ["B", "E"]), (["看"], ["S"])] * 4
    parts_of_speech = [(["the", "judge"], ["DET", "NOUN"]), (["reads"], ["VERB"])] * 4
    for name, examples in (("words", segmented), ("pos", parts_of_speech)):
        small: dict[str, Any] = {"layers": 1, "width": 16, "head_dim": 16}
        keel.finetune("bert", examples, task="tag", dev=None, steps=1, device="cpu", out=tmp_path / name, **small)
    for name, reason in (
        ("classes", "is a model for classify: give one that was fine-tuned with task='tag'"),
        ("words", "predicts a word segmentation"),
        ("pos", "predicts tags that are no entities"),
    ):
        with pytest.raises(UsageError, match=reason):
            learn(english_corpus, tmp_path / "m", entity_model=str(tmp_path / name))
    learn(english_corpus, tmp_path / "base")
    with pytest.raises(UsageError, match="a model without a task"):
        learn(english_corpus, tmp_path / "m", entity_model=str(tmp_path / "base"))
    with pytest.raises(KeelError, match="does not exist"):
        learn(english_corpus, tmp_path / "m", entity_model=str(tmp_path / "nowhere"))
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("system", ["bert", "electra", "gpt", "word2vec"])
@pytest.mark.parametrize("setting", ["entities", "entity_model"])
def test_other_systems_refuse_entities(english_corpus: Path, tmp_path: Path, system: str, setting: str) -> None:
    settings: dict[str, Any] = {setting: "names.txt"}
    with pytest.raises(UsageError, match=f"^{setting} is for masking entities as a whole, which {system} does not do"):
        keel.pretrain(system, english_corpus, out=tmp_path / "m", **settings)


def test_an_empty_list_is_refused_and_one_without_effect_noted(english_corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("\n")
    with pytest.raises(KeelError, match=r"names\.txt lists nothing"):
        learn(english_corpus, tmp_path / "m", entities=str(path))
    assert not (tmp_path / "m").exists()
    path.write_text("Atlantis\n")
    _, events = learn(english_corpus, tmp_path / "m", entities=str(path))
    assert "1 of 1 entity name not found in the text: Atlantis (is it the right file?)" in notes(events)


def test_names_of_a_single_character_are_left_out(chinese_corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_bytes("小明\n\n人\n小明\tPER\nA\n".encode("gb18030"))
    _, events = learn(chinese_corpus, tmp_path / "m", entities=str(path))
    assert f"{path}: 2 names of a single character left out: A, 人" in notes(events)
    path.write_text("人\n", encoding="utf-8")
    with pytest.raises(KeelError, match=r"names\.txt lists single characters only"):
        learn(chinese_corpus, tmp_path / "n", entities=str(path))


def test_levels_without_effect_are_noted(chinese_corpus: Path, names: Path, tagger: Path, tmp_path: Path) -> None:
    def notes_of(name: str, **settings: Any) -> list[str]:
        parts = ("the phrase level masks", "the entity level masks", "never masked")
        _, events = learn(chinese_corpus, tmp_path / name, **settings)
        return [each for each in notes(events) if any(part in each for part in parts)]

    entity, phrase = notes_of("nothing")
    assert entity.startswith("no entities are given (entities, entity_model)")
    assert entity.endswith("masks words")
    assert phrase.startswith("no phrases are given (phrases)")
    assert [each.rpartition(" ")[2] for each in notes_of("phrases", phrases=1)] == ["phrases"]
    assert notes_of("basic", phrase_share=0.0, entity_share=0.0) == []
    never = notes_of("shares", phrase_share=0.0, entity_share=0.0, phrases=1, entities=str(names))
    assert [each.split(" are never masked")[0] for each in never] == ["the entities", "the phrases"]
    (same,) = notes_of("tagger", entity_model=str(tagger), phrases=1)  # it knows English names only
    assert same.startswith("no entity differs")


def test_phrases_join_chinese_words_where_chinese_is_one_of_the_languages(
    english_corpus: Path, chinese_corpus: Path, tmp_path: Path
) -> None:
    learn(chinese_corpus, tmp_path / "alone", phrases=1)
    learn({"en": english_corpus, "zh": chinese_corpus}, tmp_path / "both", phrases=1, pair_objective="none")
    alone, both = (
        {each for each in (tmp_path / name / "run" / "phrases.txt").read_text().split("\n") if each > "\u4e00"}
        for name in ("alone", "both")
    )
    assert len(alone & both) > len(alone) / 2, "not pairs of characters"


def test_an_interrupted_run_resumes_and_other_names_are_another_run(
    chinese_corpus: Path, names: Path, tmp_path: Path
) -> None:
    def stop(event: Event) -> None:
        if event["event"] == "step" and event["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    settings: dict[str, Any] = {"entities": str(names), "phrases": 1, "log_every": 1, "final_sequence_length": 32}
    whole, _ = learn(chinese_corpus, tmp_path / "whole", **settings)
    with pytest.raises(Interrupted):
        keel.pretrain("ernie", chinese_corpus, out=tmp_path / "cut", on_event=stop, **(QUICK | settings))
    cut, _ = learn(chinese_corpus, tmp_path / "cut", **settings)
    assert cut.fingerprint() == whole.fingerprint()
    names.write_text("小明\n", encoding="utf-8")
    with pytest.raises(
        UsageError, match=r"with another version or part of the names of .*names\.txt: use that to resume"
    ):
        learn(chinese_corpus, tmp_path / "cut", **settings)
    with pytest.raises(UsageError, match=r"with the names of .*names\.txt, not no entities"):
        learn(chinese_corpus, tmp_path / "cut", **settings | {"entities": ""})


def test_a_trained_ernie_is_pretrained_further_at_another_level(
    chinese_corpus: Path, names: Path, tmp_path: Path
) -> None:
    learn(chinese_corpus, tmp_path / "first")
    more: dict[str, Any] = {name: value for name, value in QUICK.items() if name not in (*SMALL, "vocabulary")}
    more |= {"phrase_share": 0.0, "entity_share": 1.0, "entities": str(names)}
    model = keel.pretrain(tmp_path / "first", chinese_corpus, out=tmp_path / "m", **more)
    assert isinstance(model.system, keel.Ernie)
    assert model.system.entity_share == 1.0
    assert keel.Model.load(tmp_path / "m").card.recipe["text"]["entities"] == str(names)
