"""Prompts of language models: the prompt is the paper's, and the result is the generated answer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import keel
from keel.data.predictions import GeneratedText
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.model import Model
from keel.systems.ngram import Ngram

BYTES = Tokenizer.train(keel.Corpus.of(["The boat lies at anchor.\nQ: A: = TL;DR:"] * 3), kind="bpe", size=300)


class Script(nn.Module):
    """Writes the same whatever it reads, and remembers what that was."""

    def __init__(self, text: str, longest: int | None = None) -> None:
        super().__init__()
        self.ids, self.max_context = BYTES.encode(text).ids, longest
        self.bos_id = self.eos_id = BYTES.sep_id
        self.prompt = ""

    def new_state(self, batch_size: int) -> None:
        return None

    def step(self, ids: Tensor, state: Any, record: Any = None) -> Any:
        if ids.shape[1] > 1:
            self.prompt, state = BYTES.decode(ids[0].tolist()), None
        step = 0 if state is None else state
        scores = torch.zeros(1, len(BYTES))
        scores[0, self.ids[step % len(self.ids)]] = 50.0
        return scores, step + 1


@pytest.fixture
def model() -> Model:
    return Model(system=Ngram(), encoder=Ngram().build_encoder(len(BYTES)), tokenizer=BYTES)


def scripted(model: Model, text: str, longest: int | None = None) -> tuple[Model, Script]:
    script = Script(text, longest)
    return replace(model, objective=script), script  # type: ignore


def test_an_answer_is_the_rest_of_the_line_after_a(model: Model) -> None:
    model, script = scripted(model, " at anchor\nQ: And then?")
    messages: list[str] = []
    found = keel.ask(
        "The boat lies at anchor.\n", " Where is it? ", model=model, on_event=lambda e: messages.append(e["text"])
    )
    assert isinstance(found, GeneratedText)
    assert found.prompt == "The boat lies at anchor.\nQ: Where is it?\nA:"
    assert script.prompt == found.prompt
    assert (found.text, str(found)) == ("at anchor", "at anchor")
    assert messages[0] == found.prompt


def test_a_summary_is_three_sentences_of_what_follows_the_cue(model: Model) -> None:
    model, script = scripted(model, " It lies. It stays there. It is old. It sank.")
    parts: list[str] = []
    found = keel.summarize("The boat lies at anchor.", model=model, on_text=parts.append)
    assert found.prompt == script.prompt == "The boat lies at anchor.\nTL;DR:"
    assert found.text == "It lies. It stays there. It is old."
    assert "It sank" in "".join(parts)
    assert keel.summarize("The boat.", model=model, sentences=1, cue="").prompt == "The boat."


def test_sentences_of_a_summary_stand_as_they_were_written(model: Model) -> None:
    model, _ = scripted(model, " 你好。我们再见。他走了。It sank.  It is\nold. Yes. ")
    assert keel.summarize("船在海上。", model=model, sentences=2).text == "你好。我们再见。"
    assert keel.summarize("船在海上。", model=model, sentences=5).text == "你好。我们再见。他走了。It sank.  It is"


def test_an_empty_generation_gets_a_note(model: Model) -> None:
    messages: list[str] = []

    def on_event(event: dict[str, Any]) -> None:
        messages.extend([event["text"]] if event["event"] == "note" else [])

    silent, _ = scripted(model, " \nQ: And then?")
    assert keel.ask("The boat lies.", "Where?", model=silent, on_event=on_event).text == ""
    assert messages.pop() == (
        "the model generated nothing before the end of the line: another question or a longer passage may help"
    )
    assert keel.translate("the boat", by_pattern=[("sea", "mer")], model=silent, on_event=on_event).text == ""
    assert "more pairs, or pairs more similar to this text, may help" in messages.pop()
    silent, script = scripted(replace(model, system=keel.Gpt()), " ")
    script.ids = [BYTES.sep_id]
    assert keel.summarize("The boat lies.", model=silent, on_event=on_event).text == ""
    assert "nothing before the end of the text: another seed, a higher top_k" in messages.pop()
    able, _ = scripted(model, " at anchor\n")
    keel.ask("The boat lies.", "Where?", model=able, on_event=on_event)
    assert not messages


def test_a_translation_follows_its_pattern(model: Model, tmp_path: Path) -> None:
    model, script = scripted(model, " le bateau\nthe sea = la mer")
    file = tmp_path / "pairs.tsv"
    file.write_text("sea\tmer\nthe  anchor\tl'ancre\tCC-BY\n\n")
    found = keel.translate("the\nboat", by_pattern=file, model=model)
    assert found.prompt == script.prompt == "sea = mer\nthe  anchor = l'ancre\nthe boat ="
    assert found.text == "le bateau"
    pairs = [("sea", "mer"), ("the  anchor", "l'ancre")]
    assert keel.translate("the boat", by_pattern=pairs, model=model) == found
    several = keel.translate(["the boat", " ", "the boat"], by_pattern=iter(pairs), model=model)
    assert several == [found, GeneratedText(""), found]


def test_what_a_model_of_documents_writes_ends_with_its_document(model: Model) -> None:
    able, script = scripted(model, "")
    script.ids = [*BYTES.encode(" It lies.").ids, BYTES.sep_id, *BYTES.encode(" It sank.").ids]
    assert " It lies. It sank." in keel.generate("The boat", model=able, temperature=0), "of sentences many are wanted"
    able = replace(able, system=keel.Gpt())
    assert keel.generate("The boat", model=able, temperature=0) == " It lies."
    assert keel.summarize("The boat", model=able).text == "It lies."


def test_a_prompt_that_is_too_long_is_cut_only_with_cut(model: Model) -> None:
    passage = "The boat lies at anchor. " * 20
    model, script = scripted(model, " at anchor\n", longest=60)
    with pytest.raises(KeelError, match=r"exceed the context window of 60: use a shorter passage .* cut"):
        keel.ask(passage, "Where?", model=model, tokens=10)
    messages: list[str] = []
    found = keel.ask(passage, "Where?", model=model, tokens=10, cut=True, on_event=lambda e: messages.append(e["text"]))
    assert isinstance(found, GeneratedText)
    assert found.prompt.endswith("anchor.\nQ: Where?\nA:")
    assert passage.strip().endswith(found.prompt.partition("\n")[0])
    assert len(BYTES.encode(found.prompt).ids) in range(45, 51)
    assert script.prompt == found.prompt
    assert "at the beginning are cut" in messages[0]
    with pytest.raises(KeelError, match=r"use a shorter passage or fewer tokens$"):
        keel.ask("A boat.", "Where?" * 60, model=model, tokens=10, cut=True)


def test_missing_input_is_refused(model: Model, tmp_path: Path) -> None:
    able, _ = scripted(model, " yes")
    with pytest.raises(UsageError, match="the passage is empty: give a text or a file"):
        keel.ask(" \n", "Who?", model=able)
    with pytest.raises(UsageError, match="there is no question: keel ask PASSAGE"):
        keel.ask("The boat.", "", model=able)
    with pytest.raises(UsageError, match="the text is empty"):
        keel.summarize("", model=able)
    with pytest.raises(UsageError, match="sentences must be 1 or more, not 0"):
        keel.summarize("The boat.", model=able, sentences=0)
    with pytest.raises(UsageError, match="there is nothing to translate"):
        keel.translate("", by_pattern=[("sea", "mer")], model=able)
    empty = tmp_path / "none.tsv"
    empty.write_text("\n\t\n")
    with pytest.raises(KeelError, match=r"none\.tsv contains no pairs: a line is a text, a tab and its translation"):
        keel.translate("the boat", by_pattern=empty, model=able)
    for name, line in (("lone.tsv", "lone"), ("half.tsv", "sea\t "), ("commas.csv", "sea,mer")):
        (tmp_path / name).write_text(f"sea\tmer\n\n{line}\n")
        with pytest.raises(KeelError, match=rf"{name}:3: '.*' is no pair: a line is a text, a tab and its translation"):
            keel.translate("the boat", by_pattern=tmp_path / name, model=able)
    (tmp_path / "commas.csv").write_text("sea, wide\tmer, large\n")
    found = keel.translate("a", by_pattern=tmp_path / "commas.csv", model=able)
    assert found.prompt == "sea, wide = mer, large\na ="
    with pytest.raises(KeelError, match="pair 2: 'a' is no pair"):
        keel.translate("the boat", by_pattern=[("sea", "mer"), ("a", "")], model=able)
    with pytest.raises(KeelError, match="the list contains no pairs"):
        keel.translate("the boat", by_pattern=[], model=able)
    for verb in (keel.summarize, lambda text, model: keel.ask(text, "Who?", model=model)):
        with pytest.raises(KeelError, match="ngram does not generate text: use a language model"):
            verb("The boat.", model=model)  # it has no objective, as a fine-tuned one


def test_models_that_know_no_line_breaks_answer_by_a_sentence(english_corpus: Path, tmp_path: Path) -> None:
    ngram = keel.pretrain("ngram", english_corpus, out=tmp_path / "m")
    found = keel.ask("The sailor repairs the boat.", "Who repairs the boat?", model=ngram)
    assert isinstance(found, GeneratedText)
    assert len(found.text.split()) > 1
    assert found.text.count(".") + found.text.count("!") + found.text.count("?") <= 2, "Dr. may be among them"
    assert keel.summarize("The sailor repairs the boat.", model=ngram, tokens=20).text
