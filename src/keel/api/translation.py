"""What a model does that learned to rewrite texts, as a verb: translate; or, by examples, one that learned to write."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, overload

from keel.api.model_loading import load_model
from keel.api.prompting import Pairs, pairs_of, translate_by_pattern
from keel.api.settings import route_settings
from keel.api.text_generation import trace_files, write_trace
from keel.data.examples import Examples
from keel.data.predictions import GeneratedText
from keel.errors import UsageError
from keel.events import OnEvent, ignore
from keel.explain.decoding_steps import decoding_data, readable_tokens
from keel.explain.word_alignment import Alignment, align_words
from keel.generation.beam_search import SearchInterrupted
from keel.generation.decoding_trace import DecodingTrace
from keel.model import Model
from keel.tasks.sequence_to_sequence import SequenceToSequence

BY_PATTERN = ("tokens", "cut")
"""Settings of a language model that goes on from a pattern; all others are of a search."""


@overload  # a str is one text, though also many strs
def translate(  # pyright: ignore[reportOverlappingOverload]
    texts: str,
    *, model: Model | str | Path, beams: int | None = None, best: int | None = None,
    length_penalty: float | None = None, trace: str | Path | None = None, by_pattern: Pairs | None = None,
    tokens: int | None = None, cut: bool = False, on_event: OnEvent = ignore,
) -> GeneratedText: ...  # fmt: skip
@overload
def translate(
    texts: Iterable[str],
    *, model: Model | str | Path, beams: int | None = None, best: int | None = None,
    length_penalty: float | None = None, trace: str | Path | None = None, by_pattern: Pairs | None = None,
    tokens: int | None = None, cut: bool = False, on_event: OnEvent = ignore,
) -> list[GeneratedText]: ...  # fmt: skip
def translate(
    texts: str | Iterable[str],
    *,
    model: Model | str | Path,
    beams: int | None = None,
    best: int | None = None,
    length_penalty: float | None = None,
    trace: str | Path | None = None,
    by_pattern: Pairs | None = None,
    tokens: int | None = None,
    cut: bool = False,
    on_event: OnEvent = ignore,
) -> GeneratedText | list[GeneratedText]:
    """What a model that learned to rewrite makes of a text, or of many: `text` is what it wrote, and so is `str` of it,
    as in `[each.text for each in translate(texts, model=model)]`.

    It searches as it was told when it learned, unless `beams` and `length_penalty` are given; with `best` above 1 each
    has `others`. `trace` is an .html or .json file, or a folder for both, that shows how each word was chosen. With
    pairs in `by_pattern` a language model is asked to go on from them instead, by at most so many `tokens` (50), and
    with `cut` the first of too many pairs are left out.
    """
    given = {
        "beams": beams,
        "best": best,
        "length_penalty": length_penalty,
        "tokens": tokens,
        "cut": cut or None,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    if not isinstance(texts, Iterable):
        raise UsageError(f"{texts!r} cannot be translated: give a text, or several")
    many: Iterable[str] = [texts] if isinstance(texts, str) else texts
    if isinstance(texts, str) and not texts.strip():
        raise UsageError("there is nothing to translate: give a text")
    found = [
        replace(first, alternatives=tuple(others))
        for first, *others in translations(
            many, model=model, by_pattern=by_pattern, trace=trace, on_event=on_event, **settings
        )
    ]
    return found[0] if isinstance(texts, str) else found


def translations(
    texts: Iterable[str],
    *,
    model: Model | str | Path,
    by_pattern: Pairs | None = None,
    at_once: int = 0,
    trace: str | Path | None = None,
    on_event: OnEvent = ignore,
    **settings: Any,
) -> Iterator[list[GeneratedText]]:
    """The best texts for each of many, in their order, so many written `at_once` (0: as many as is fast); what is blank
    stays so. Of a trace, all texts are one batch. Interrupted, it raises `Stopped` with what it has of those that it
    was to give next."""
    for name in [*settings, *([] if trace is None else ["trace"])]:
        if (name in BY_PATTERN) == (by_pattern is None):
            goes = "goes only" if by_pattern is None else "does not go"
            flag = {"beams": "beam"}.get(name, name).replace("_", "-")
            raise UsageError(f"--{flag} {goes} with --by-pattern: leave it out")
    if by_pattern is not None:
        return _prompted(load_model(model, on_event), texts, pairs_of(by_pattern, on_event), on_event, settings)
    if trace is not None:
        trace_files(trace)
    task = _task(model, on_event)
    (search,) = route_settings(settings, task.decoding)
    task = task.with_decoding(search)
    if trace is None:
        return _written(task, iter(texts), at_once or task.inference_batch_size, on_event)
    few = list(islice(texts, task.inference_batch_size + 1))
    if len(few) > task.inference_batch_size:
        raise UsageError(f"a trace shows at most {task.inference_batch_size} texts: give fewer, or leave out --trace")
    return _traced(task, few, trace, on_event)


def aligned(
    text: str, written: str, *, model: Model | str | Path, on_event: OnEvent = ignore, **settings: Any
) -> Alignment:
    """Which words of a text the model looks at when it writes each word of another one, which it need not have written
    itself. `settings` are `layer` and `head` of a transformer, and `subwords` instead of whole words."""
    task = _task(model, on_event)
    return align_words(
        task.system, task.encoder, task.decoder, (task.tokenizer, task.target_tokenizer), text, written, **settings
    )


def _task(model: Model | str | Path, on_event: OnEvent) -> SequenceToSequence:
    known = load_model(model, on_event)
    if not isinstance(known.task, SequenceToSequence):
        remedy = "make one by keel finetune transformer SOURCES TARGETS --task seq2seq"
        if known.task is None and known.system.is_causal_lm:
            remedy = "name a file of pairs by --by-pattern, and it goes on from them, or use keel generate"
        raise UsageError(f"{known.card.title or 'the model'} has not learned to rewrite texts: {remedy}")
    return known.task


def _prompted(
    model: Model, texts: Iterable[str], pairs: Pairs, on_event: OnEvent, settings: dict[str, Any]
) -> Iterator[list[GeneratedText]]:
    for text in texts:
        if text.strip():
            found = translate_by_pattern(text, pairs, model=model, on_event=on_event, **settings)
            yield [GeneratedText(found.text, prompt=found.prompt)]
        else:
            yield [GeneratedText("")]


def _written(
    task: SequenceToSequence, texts: Iterator[str], at_once: int, on_event: OnEvent
) -> Iterator[list[GeneratedText]]:
    while some := list(islice(texts, at_once)):
        try:
            found = task.predict(_asked(task, some), on_event=on_event).generated if any(map(str.strip, some)) else []
        except SearchInterrupted as stopped:
            raise SearchInterrupted(_with_blanks(some, stopped.found)) from None
        yield from _with_blanks(some, found)


def _with_blanks(texts: list[str], found: list[list[GeneratedText]]) -> list[list[GeneratedText]]:
    left = iter(found)
    return [next(left) if text.strip() else [GeneratedText("", 0.0, 0.0)] for text in texts]


def _traced(
    task: SequenceToSequence, texts: list[str], path: str | Path, on_event: OnEvent
) -> Iterator[list[GeneratedText]]:
    seen = DecodingTrace()
    if blank := next((number for number, text in enumerate(texts, 1) if not text.strip()), 0):
        raise UsageError(f"a trace shows how texts are written, and text {blank} is blank: leave it out")
    data = task.encode_examples(_asked(task, texts), labelled=False, on_event=on_event)
    found, paths = task.predict_traced(data, seen, on_event)
    pieces = [readable_tokens(task.tokenizer, row) for row in data.id_lists()]
    answers = [
        [{"text": each.text, "score": each.score, "log_probability": each.log_probability} for each in best]
        for best in found
    ]
    prompts: list[list[int]] = [[] for _ in texts]
    told = decoding_data(
        seen, task.target_tokenizer, task.decoding, prompts=prompts, answers=answers, written=paths, sources=pieces
    )
    write_trace(path, told, on_event)
    yield from found


def _asked(task: SequenceToSequence, texts: list[str]) -> Examples:
    items = [task.make_example(text, number) for number, text in enumerate(texts) if text.strip()]
    return Examples(items, None, "the texts")
