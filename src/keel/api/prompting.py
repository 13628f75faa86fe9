"""What a language model does because it is asked in plain text, untaught, as verbs: ask, summarize, translate by
pattern; and how well, by the likelihood of given answers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keel.api.model_loading import load_model
from keel.api.settings import route_settings
from keel.api.text_generation import continuations
from keel.data.examples import Columns, Labels, read_examples
from keel.data.label_kinds import ChoiceLabel
from keel.data.multiple_choice_files import read_choices
from keel.data.sentence_splitting import split_sentences
from keel.data.text_files import open_text
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.explain.zero_shot import Question, choose_most_probable, next_token_model, predict_last_words
from keel.generation.sampling import GREEDY, Sampling
from keel.metrics.scores import Scores
from keel.model import Model

Pairs = str | Path | Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Prompted:
    """What a model wrote, and what it went on from."""

    prompt: str
    text: str

    def __str__(self) -> str:
        return self.text


def ask(
    passage: str,
    question: str,
    *,
    model: Model | str | Path,
    tokens: int = 30,
    cut: bool = False,
    on_text: Callable[[str], object] = str,
    on_event: OnEvent = ignore,
) -> Prompted:
    """What a model says to a question about a passage: it goes on from passage, "Q: ...", "A:", by the likeliest word
    each time, to the end of the line. With `cut` a passage that is too long loses its beginning.

    Passage and questions may also be a talk: "Q: ...", "A: ..." in turns, the last question apart.
    """
    _given(passage, "the passage is empty: give a text, or a file of it")
    _given(question, 'there is no question: keel ask PASSAGE "Who came first?" --model M')
    known = load_model(model, on_event)
    prompt = _fitting(known, passage.strip(), f"\nQ: {question.strip()}\nA:", tokens, cut, on_event)
    remedy = "another question, or a longer passage, may help"
    return _prompted(known, prompt, GREEDY, tokens, remedy, on_text, on_event, line=True)


def summarize(
    text: str,
    *,
    model: Model | str | Path,
    tokens: int = 100,
    top_k: int = 2,
    sentences: int = 3,
    cue: str = "TL;DR:",
    seed: int = 0,
    cut: bool = False,
    on_text: Callable[[str], object] = str,
    on_event: OnEvent = ignore,
) -> Prompted:
    """The first sentences of what a model writes after a text and "TL;DR:", as GPT-2's authors did: 100 tokens, each
    drawn from the two likeliest, three sentences; without a `cue` it just goes on."""
    _given(text, "the text is empty: give one, or a file of it")
    if sentences < 1:
        raise UsageError(f"--sentences must be 1 or more, not {sentences}")
    known = load_model(model, on_event)
    prompt = _fitting(known, text.strip(), f"\n{cue}" if cue else "", tokens, cut, on_event)
    remedy = "another --seed, a higher --top-k, or a longer text may help"
    found = _prompted(known, prompt, Sampling(top_k=top_k, seed=seed), tokens, remedy, on_text, on_event)
    end = 0
    for sentence in split_sentences(found.text)[:sentences]:
        end = found.text.index(sentence, end) + len(sentence)
    return Prompted(prompt, found.text[:end])


def translate_by_pattern(
    text: str,
    pairs: Pairs,
    *,
    model: Model | str | Path,
    tokens: int = 50,
    cut: bool = False,
    on_text: Callable[[str], object] = str,
    on_event: OnEvent = ignore,
) -> Prompted:
    """What a model puts after "text =" when lines of "english = french" stand before: pairs, or a tsv of them. With
    `cut` the first of too many pairs are left out."""
    _given(text, "there is nothing to translate: give a text")
    known = load_model(model, on_event)
    lines = "\n".join(f"{first} = {second}" for first, second in pairs_of(pairs, on_event))
    prompt = _fitting(known, lines, f"\n{' '.join(text.split())} =", tokens, cut, on_event, "fewer pairs")
    remedy = "more pairs, or more like this text, may help"
    return _prompted(known, prompt, GREEDY, tokens, remedy, on_text, on_event, line=True)


def last_words(model: Model | str | Path, source: Any, *, on_event: OnEvent = ignore, **settings: Any) -> Scores:
    """How often a model foretells the last word of a text from all before it (LAMBADA), and its perplexity."""
    known = load_model(model, on_event)
    next_token_model(known)
    (columns,) = route_settings(settings, Columns())
    examples = read_examples(source, pair=False, columns=columns, on_event=on_event)
    return predict_last_words(known, [(each.location, each.text) for each in examples], on_event=on_event)


def choose(model: Model | str | Path, source: Any, *, on_event: OnEvent = ignore, **settings: Any) -> Scores:
    """How often a model that was taught no task finds the right one of some choices likeliest."""
    known = load_model(model, on_event)
    next_token_model(known)
    (columns,) = route_settings(settings, Columns())
    examples = read_choices(source, columns, on_event)
    labels = Labels(kind=ChoiceLabel()).targets(examples).tolist()
    questions = [
        Question(context=each.text, choices=each.choices, label=label, where=each.location)
        for each, label in zip(examples, labels, strict=True)
    ]
    return choose_most_probable(known, questions, on_event=on_event)


def _given(text: str, otherwise: str) -> None:
    if not text.strip():
        raise UsageError(otherwise)


def pairs_of(pairs: Pairs, on_event: OnEvent = ignore) -> list[tuple[str, str]]:
    """The pairs of a pattern, or of a file with a tab between the two of each line; further columns are left out."""
    if isinstance(pairs, str | Path):
        source, lines = str(pairs), open_text(pairs, "auto", on_event)
        listed = [(f"{pairs}:{number}", line.split("\t")) for number, line in lines if line.strip()]
    else:
        source, listed = "the pattern", [(f"pair {number}", [*pair]) for number, pair in enumerate(pairs, 1)]
    found: list[tuple[str, str]] = []
    for where, (first, *rest) in listed:
        if not (first.strip() and rest and rest[0].strip()):
            raise KeelError(f"{where}: {first!r:.80} is no pair: write a text, a tab and its translation")
        found.append((first.strip(), rest[0].strip()))
    if not found:
        raise KeelError(f"{source} holds no pairs: write a text, a tab and its translation in each line")
    return found


def _fitting(
    model: Model, passage: str, rest: str, tokens: int, cut: bool, on_event: OnEvent, remedy: str = "a shorter passage"
) -> str:
    """The prompt, which fits into what the model reads together with what it is to write."""
    longest, encode = next_token_model(model).max_context, model.tokenizer.encode
    if longest is None:
        return passage + rest
    most = longest - tokens  # the opening mark is read, the last token is not
    size = len(encode(passage + rest).ids)
    if size <= most:
        return passage + rest
    what = f"the prompt of {size:,} tokens and {tokens:,} to write do not fit into the {longest:,} that the model reads"
    starts = [start for start, _ in encode(passage).offsets][size - most :]
    words = [start for start in starts if passage[start - 1 : start + 1].strip() != passage[start - 1 : start + 1]]
    shorter = (passage[start:].lstrip() for start in words or starts)  # cut elsewhere, a word may be of more pieces
    kept = next((text for text in shorter if text and len(encode(text + rest).ids) <= most), "")
    if not cut or not kept:
        other = "" if cut else ", or --cut to leave out the beginning"
        raise KeelError(f"{what}: give {remedy} or fewer --tokens{other}")
    note(on_event, f"{what}: {len(passage) - len(kept):,} characters at the beginning are left out")
    return kept + rest


def _prompted(
    model: Model,
    prompt: str,
    how: Sampling,
    tokens: int,
    remedy: str,
    on_text: Callable[[str], object],
    on_event: OnEvent,
    *,
    line: bool = False,
) -> Prompted:
    """What follows the prompt: the rest of a `line`, or all up to the end of the text. If that is nothing, it is
    said with what may help."""
    on_event({"event": "prompt", "text": prompt})
    ((found, *_),) = continuations(
        [prompt], model=model, how=how, tokens=tokens, stop=["\n"] if line else [],
        closes=line or None, on_text=lambda _, text: on_text(text), on_event=on_event,
    )  # fmt: skip
    text = found.text.strip()
    if not text:
        note(on_event, f"the model wrote nothing before the {'line' if line else 'text'} ended: {remedy}")
    return Prompted(prompt, text)
