"""Language models as verbs: what is generated goes on from a prompt, and a text is evaluated by its perplexity."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import keel
from keel.decode.writer import Writer
from keel.errors import KeelError, UsageError
from keel.model import Model


@pytest.fixture(scope="module")
def ngram(english_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return keel.pretrain("ngram", english_corpus, out=tmp_path_factory.mktemp("language") / "m")


def test_text_goes_on_from_a_prompt_as_it_is_drawn(ngram: Model) -> None:
    parts: list[str] = []
    text = keel.generate("The sailor", model=ngram, tokens=30, seed=1, on_text=parts.append)
    assert "".join(parts) == text
    assert 20 < len(parts) <= 30
    assert text.startswith(" ")
    assert "[" not in text
    assert "." in text[:-1], "it goes on after a sentence"
    assert text == keel.generate("The sailor", model=ngram, tokens=30, seed=1)
    assert text != keel.generate("The sailor", model=ngram, tokens=30, seed=2)
    likely = [keel.generate("The sailor", model=ngram, tokens=9, temperature=0, seed=seed) for seed in (1, 2)]
    assert likely[0] == likely[1]
    assert keel.generate(model=ngram, tokens=3)


TINY: dict[str, dict[str, Any]] = {
    "ngram": {"order": 3},
    "nnlm": {"width": 8, "hidden": 8, "order": 3, "length": 5, "steps": 4, "vocabulary": 60},
    "rnn": {"width": 8, "both": True, "length": 8, "batch": 8, "steps": 4, "vocabulary": 60},
    "ulmfit": {"width": 8, "hidden": 12, "length": 8, "batch": 8, "steps": 4, "vocabulary": 60},
}


def tiny(name: str, corpus: Path, out: Path, device: str) -> Model:
    return keel.pretrain(name, corpus, out=out, device=device, **TINY[name])


@pytest.fixture(scope="module", params=TINY)
def model(request: pytest.FixtureRequest, english_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny(request.param, english_corpus, tmp_path_factory.mktemp("writer") / "m", "cpu")


def test_every_language_model_writes(model: Model) -> None:
    text = keel.generate("The sailor", model=model, tokens=12, seed=3)
    assert len(text.split()) > 3
    assert text == keel.generate("The sailor", model=model, tokens=12, seed=3)
    assert text != keel.generate("The sailor", model=model, tokens=12, seed=4)


def test_what_was_read_goes_on_from_any_rows(model: Model) -> None:
    writer = model.objective
    assert isinstance(writer, Writer)
    read = [model.tokenizer.encode(text).ids for text in ("a heavy", "a small", "boat")]
    ids = torch.tensor([[writer.opening, *part[-2:]] for part in read[:2]])
    order, further = torch.tensor([1, 0, 1]), torch.tensor([read[2][:1]] * 3)
    with torch.no_grad():
        _, state = writer.next(ids, writer.begin(2))
        found, _ = writer.next(further, state.take(order))
        whole, _ = writer.next(torch.cat([ids[order], further], 1), writer.begin(3))
    torch.testing.assert_close(found, whole)
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


@pytest.mark.gpu
@pytest.mark.parametrize("name", TINY)
def test_a_model_on_a_gpu_writes(name: str, english_corpus: Path, tmp_path: Path) -> None:
    tiny(name, english_corpus, tmp_path / "m", "cpu")
    scores: list[torch.Tensor] = []
    for device in ("cpu", "cuda"):
        model = Model.load(tmp_path / "m", device=device)
        assert keel.generate("The sailor", model=model, tokens=8)
        writer = model.objective
        assert isinstance(writer, Writer)
        with torch.no_grad():
            scores.append(writer.next(torch.tensor([[writer.opening, 7]]), writer.begin(1))[0].cpu())
    torch.testing.assert_close(scores[0], scores[1], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["ngram", "rnn"])
def test_chinese_has_no_spaces_between_words(name: str, chinese_corpus: Path, tmp_path: Path) -> None:
    model = keel.pretrain(name, chinese_corpus, out=tmp_path / "m", device="cpu", **{**TINY[name], "vocabulary": 1200})
    parts: list[str] = []
    text = keel.generate("水手", model=model, tokens=30, on_text=parts.append)
    assert "".join(parts) == text
    assert len(text) > 25
    assert not re.search("[一-龥] | [一-龥]", text), "numbers and letters of an untaught network have blanks between"


def test_nothing_is_drawn_that_would_be_hidden_but_ends_of_sentences(model: Model) -> None:
    writer, special = model.objective, model.tokenizer.special_ids
    assert isinstance(writer, Writer)
    likely = writer.next

    def eager(ids: torch.Tensor, state: Any) -> Any:
        scores, after = likely(ids, state)
        scores = scores.clone()
        scores[:, [number for number in special if number != writer.closing]] = 100.0
        return scores, after

    parts: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "next", eager)
        keel.generate("The sailor", model=model, tokens=12, on_text=parts.append)
    assert sum(map(bool, parts)) > 6


def test_what_cannot_be_written_is_said(ngram: Model, english_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(KeelError, match="the model knows no word of 'Qwertz uiop': begin with others"):
        keel.generate("Qwertz uiop", model=ngram)
    said: list[str] = []
    keel.generate("The qwertz", model=ngram, tokens=2, on_event=lambda event: said.append(event["text"]))
    assert said == ["1 of 2 words of the prompt are unknown to the model"]
    words = keel.pretrain("onehot", english_corpus, out=tmp_path / "w")
    with pytest.raises(KeelError, match=r"onehot does not write text: take .* such as ngram, nnlm, rnn, ulmfit or gpt"):
        keel.generate("The", model=words)
    with pytest.raises(UsageError, match="onehot does not foretell"):
        keel.perplexity(words, english_corpus)


def test_evaluate_gives_the_perplexity_of_a_text(ngram: Model, english_corpus: Path, tmp_path: Path) -> None:
    found = keel.perplexity(ngram, english_corpus)
    assert keel.evaluate(ngram, english_corpus, out=tmp_path) == found
    assert (tmp_path / "scores.json").is_file()
    (tmp_path / "table.csv").write_text("body,n\nThe sailor paints the boat.,1\n")
    assert keel.evaluate(ngram, tmp_path / "table.csv", text_column="body").count == 7
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(KeelError, match=r"empty\.txt holds no text"):
        keel.evaluate(ngram, tmp_path / "empty.txt")


def test_sentences_are_told_apart_as_the_model_learned_them(tmp_path: Path) -> None:
    text = tmp_path / "lines.txt"
    text.write_text("The sailor came home . He slept .\nThe judge went home . She slept .\n\n" * 40, encoding="utf-8")
    model = keel.pretrain("ngram", text, out=tmp_path / "m", sentences="lines", held_out=0.0)
    found = keel.evaluate(model, text)
    assert str(found) == str(keel.perplexity(model, text, sentences="lines"))
    assert str(found) != str(keel.perplexity(model, text, sentences="split"))
