"""Questions, summaries and few-shot translation: prompts of language models, and answers by spans of a passage."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from keel.api.model_loading import ModelSource, load_model
from keel.api.text_generation import MAX_TOKENS, continuations
from keel.config import Doc, Ge, enforces_bounds
from keel.data.predictions import GeneratedText, SpanAnswer
from keel.data.sentence_splitting import split_sentences
from keel.data.text_files import open_text
from keel.data.text_inputs import require_text
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.explain.zero_shot import next_token_model
from keel.generation.sampling import GREEDY, Sampling
from keel.model import Model
from keel.systems.capabilities import LanguageModelSystem
from keel.tasks.answer import SpanAnswering

__all__ = ["ask", "summarize"]

Pairs = str | Path | Iterable[tuple[str, str]]
"""Examples of few-shot prompting: a tsv file or a list of pairs."""
LONG_TOKEN = 100
"""Characters that no token has on average: of a longer passage only the end is tokenized."""
CUT = Doc("Leave out the beginning of a prompt that exceeds the context window.")


def ask(
    passage: str,
    question: str,
    *,
    model: ModelSource,
    tokens: Annotated[int, MAX_TOKENS] = 30,
    cut: Annotated[bool, CUT] = False,
    on_text: Callable[[str], object] = str,
    on_event: OnEvent = ignore,
) -> GeneratedText | SpanAnswer:
    """Answer a question about a passage.

    A model fine-tuned for `answer` gives a `SpanAnswer`: a span of the passage, with probability and place. A language
    model gives a `GeneratedText`: greedy decoding after the passage, "Q: ..." and "A:", to the end of the line, at most
    `tokens`. The passage may then end with earlier questions and answers, and with `cut` the beginning of one that is
    too long for the context window is left out.
    """
    _require(passage, "the passage is empty: give a text or a file")
    _require(question, 'there is no question: keel ask PASSAGE "Who came first?" --model M')
    known = load_model(model, on_event)
    if isinstance(known.task, SpanAnswering):
        return known.predict((passage, question), on_event=on_event)
    has_spans = not isinstance(known.system, LanguageModelSystem) and not known.encoder.bag_of_words
    next_token_model(known, "fine-tune it with --task answer" if has_spans else "")  # refuses other models
    prompt = _fit_prompt(known, passage.strip(), f"\nQ: {question.strip()}\nA:", tokens, cut, on_event)
    remedy = "another question or a longer passage may help"
    return _generate(known, prompt, tokens, remedy, on_text, on_event)


@enforces_bounds
def summarize(
    text: str,
    *,
    model: ModelSource,
    tokens: Annotated[int, MAX_TOKENS] = 100,
    top_k: Annotated[int, Ge(0), Doc("Top-k sampling: sample from the k most probable tokens; 0: from all.")] = 2,
    sentences: Annotated[int, Ge(1), Doc("Sentences of the summary.")] = 3,
    cue: Annotated[str, Doc("Prompt after the text.")] = "TL;DR:",
    seed: Annotated[int, Ge(0), Doc("Random seed of sampling.")] = 0,
    cut: Annotated[bool, CUT] = False,
    on_text: Callable[[str], object] = str,
    on_event: OnEvent = ignore,
) -> GeneratedText:
    """Summarize a text as in the GPT-2 paper: the first three `sentences` of 100 `tokens`, sampled with top-k 2 after
    the text and the `cue` "TL;DR:"."""
    _require(text, "the text is empty: give a text or a file")
    known = load_model(model, on_event)
    prompt = _fit_prompt(known, text.strip(), f"\n{cue}" if cue else "", tokens, cut, on_event)
    remedy = "another --seed, a higher --top-k or a longer text may help"
    found = _generate(known, prompt, tokens, remedy, on_text, on_event, sampling=Sampling(top_k=top_k, seed=seed))
    end = 0
    for sentence in split_sentences(found.text)[:sentences]:
        end = found.text.index(sentence, end) + len(sentence)
    return replace(found, text=found.text[:end])


def few_shot_translation(
    text: str, pairs: Sequence[tuple[str, str]], *, model: Model, tokens: int = 50, cut: bool = False, on_event: OnEvent
) -> GeneratedText:
    """Greedy decoding after lines of "source = target" and "text ="; with `cut` the first of too many pairs are left
    out."""
    lines = "\n".join(f"{first} = {second}" for first, second in pairs)
    prompt = _fit_prompt(model, lines, f"\n{' '.join(text.split())} =", tokens, cut, on_event, "fewer pairs")
    remedy = "more pairs, or pairs more similar to this text, may help"
    return _generate(model, prompt, tokens, remedy, str, on_event)


def _require(text: str, otherwise: str) -> None:
    if not require_text(text).strip():
        raise UsageError(otherwise)


def pairs_of(pairs: Pairs, on_event: OnEvent = ignore) -> list[tuple[str, str]]:
    """Pairs of source and target from a list or a tsv file; further columns are ignored."""
    if isinstance(pairs, str | Path):
        source, lines = str(pairs), open_text(pairs, "auto", on_event)
        listed = [(f"{pairs}:{number}", line.split("\t")) for number, line in lines if line.strip()]
    else:
        source, listed = "the list", [(f"pair {number}", [*pair]) for number, pair in enumerate(pairs, 1)]
    found: list[tuple[str, str]] = []
    for where, (first, *rest) in listed:
        if not (first.strip() and rest and rest[0].strip()):
            raise KeelError(f"{where}: {first!r:.80} is no pair: a line is a text, a tab and its translation")
        found.append((first.strip(), rest[0].strip()))
    if not found:
        raise KeelError(f"{source} contains no pairs: a line is a text, a tab and its translation")
    return found


def _fit_prompt(
    model: Model, passage: str, rest: str, tokens: int, cut: bool, on_event: OnEvent, remedy: str = "a shorter passage"
) -> str:
    """The prompt, cut if allowed so that it and the generated tokens fit into the context window."""
    longest, encode = next_token_model(model).max_context, model.tokenizer.encode
    if longest is None:
        return passage + rest
    most = longest - tokens  # the BOS token is read, the last token is not
    whole, passage = len(passage), passage[-LONG_TOKEN * longest :]
    size = len(encode(passage + rest).ids)
    if size <= most and len(passage) == whole:
        return passage + rest
    shown = f"{size:,} tokens" if len(passage) == whole else f"{whole:,} characters"
    what = f"the prompt of {shown} and {tokens:,} tokens to generate exceed the context window of {longest:,}"
    starts = [start for start, _ in encode(passage).offsets][max(1, size - most) :]
    words = [start for start in starts if passage[start - 1 : start + 1].strip() != passage[start - 1 : start + 1]]
    shorter = (passage[start:].lstrip() for start in words or starts)  # elsewhere a word may be split into more tokens
    kept = next((text for text in shorter if text and len(encode(text + rest).ids) <= most), "")
    if not cut or not kept:
        other = "" if cut else ", or --cut to leave out the beginning"
        raise KeelError(f"{what}: use {remedy} or fewer --tokens{other}")
    note(on_event, f"{what}: {whole - len(kept):,} characters at the beginning are cut")
    return kept + rest


def _generate(
    model: Model,
    prompt: str,
    tokens: int,
    remedy: str,
    on_text: Callable[[str], object],
    on_event: OnEvent,
    sampling: Sampling | None = None,
) -> GeneratedText:
    """Generate after the prompt: greedily the rest of the line or, by sampling, up to the end of the text."""
    on_event({"event": "prompt", "text": prompt})
    line = sampling is None
    ((found, *_),) = continuations(
        [prompt],
        model=model,
        strategy=sampling or GREEDY,
        tokens=tokens,
        stop=["\n"] if line else [],
        stop_at_eos=line or None,
        on_text=lambda _, text: on_text(text),
        on_event=on_event,
    )
    text = found.text.strip()
    if not text:
        note(on_event, f"the model generated nothing before the end of the {'line' if line else 'text'}: {remedy}")
    return replace(found, text=text, prompt=prompt)
