"""Translation with a seq2seq model or, by few-shot examples, with a language model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Unpack, overload

from keel.api.keywords import BeamSearchKeywords, TranslateKeywords
from keel.api.model_loading import ModelSource, load_model
from keel.api.prompting import Pairs, few_shot_translation, pairs_of
from keel.api.settings import route_settings
from keel.api.trace_files import TRACE, trace_files, write_trace
from keel.config import Doc
from keel.data.examples import Examples
from keel.data.predictions import GeneratedText
from keel.data.text_inputs import Texts, text_inputs
from keel.errors import UsageError, flag_of
from keel.events import OnEvent, ignore
from keel.explain.decoding_steps import decoding_data, readable_tokens
from keel.explain.word_alignment import Alignment, align_words
from keel.generation.beam_search import SearchInterrupted
from keel.generation.decoding_trace import DecodingTrace
from keel.model import Model
from keel.report.charts import heat_map
from keel.report.html_page import picture_file, write_figures
from keel.systems.capabilities import LanguageModelSystem
from keel.tasks.sequence_to_sequence import SequenceToSequence

__all__ = ["translate"]

PROMPT_SETTINGS = ("tokens", "cut")
"""Settings of few-shot prompting; all others are of beam search."""


@overload  # a str is one text, though also an iterable of strs
def translate(  # pyright: ignore[reportOverlappingOverload]
    texts: str, *, model: ModelSource, **options: Unpack[TranslateKeywords]
) -> GeneratedText: ...
@overload
def translate(
    texts: Iterable[str], *, model: ModelSource, **options: Unpack[TranslateKeywords]
) -> list[GeneratedText]: ...
def translate(
    texts: Texts,
    *,
    model: ModelSource,
    by_pattern: Annotated[
        Pairs | None, Doc("Few-shot prompting of a language model: a tsv file of pairs, source and target.")
    ] = None,
    tokens: Annotated[int | None, Doc("With --by-pattern, maximum number of tokens to generate; default: 50.")] = None,
    cut: Annotated[
        bool, Doc("With --by-pattern, leave out the first pairs if they exceed the context window.")
    ] = False,
    trace: Annotated[str | Path | None, TRACE] = None,
    on_event: OnEvent = ignore,
    **search: Unpack[BeamSearchKeywords],
) -> GeneratedText | list[GeneratedText]:
    """Translate a text, or several, with a seq2seq model; `str` of a result is its text.

    The beam search is as in fine-tuning unless `beams` or `length_penalty` is given; with `best` above 1 each result
    has `alternatives`. `trace` is an .html or .json file, or a folder, for how tokens were chosen. With `by_pattern`,
    pairs or a tsv file of them, a language model is prompted with these examples and generates at most `tokens` (50);
    `cut` leaves out the first pairs if they exceed the context window.
    """
    given = {**search, "tokens": tokens, "cut": cut or None}
    settings = {name: value for name, value in given.items() if value is not None}
    many, one = text_inputs(texts)
    if one and not many[0].strip():
        raise UsageError("there is nothing to translate: give a text")
    found = [
        replace(first, alternatives=tuple(others))
        for first, *others in translations(
            many, settings, model=model, by_pattern=by_pattern, trace=trace, on_event=on_event
        )
    ]
    return found[0] if one else found


def translations(
    texts: Iterable[str],
    settings: Mapping[str, Any],
    *,
    model: ModelSource,
    by_pattern: Pairs | None = None,
    batch_size: int = 0,
    trace: str | Path | None = None,
    on_event: OnEvent = ignore,
) -> Iterator[list[GeneratedText]]:
    """The best translations of each text, in order, in batches (0: the fastest size); an empty text stays empty.

    A trace holds all texts in one batch. An interruption raises `SearchInterrupted` with the finished texts.
    """
    for name in [*settings, *([] if trace is None else ["trace"])]:
        if (name in PROMPT_SETTINGS) == (by_pattern is None):
            applies = "needs" if by_pattern is None else "cannot be combined with"
            raise UsageError(f"{flag_of(name)} {applies} --by-pattern: leave it out")
    if by_pattern is not None:
        return _by_prompt(load_model(model, on_event), texts, pairs_of(by_pattern, on_event), on_event, settings)
    if trace is not None:
        trace_files(trace)
    task = _task(model, on_event)
    (search,) = route_settings(settings, task.decoding)
    task = task.with_decoding(search)
    if trace is None:
        return _by_search(task, iter(texts), batch_size or task.inference_batch_size, on_event)
    few = list(islice(texts, task.inference_batch_size + 1))
    if len(few) > task.inference_batch_size:
        most = task.inference_batch_size
        raise UsageError(f"--trace shows at most {most} texts: give fewer, or leave it out")
    return _traced(task, few, trace, on_event)


def aligned(text: str, generated: str, *, model: ModelSource, on_event: OnEvent = ignore, **settings: Any) -> Alignment:
    """Cross-attention between the words of a text and of a translation, which may be by anybody.

    `settings` are `layer` and `head` of a transformer, and `subwords` for subwords instead of words.
    """
    task = _task(model, on_event)
    return align_words(
        task.system, task.encoder, task.decoder, (task.tokenizer, task.target_tokenizer), text, generated, **settings
    )


def write_alignment(path: str | Path, alignments: Sequence[Alignment]) -> Path:
    """Write heat maps of alignments to an .html file, or the first one to a picture."""
    figures = [
        (heat_map(each.source, each.target, each.weights), f"{' '.join(each.target)}, generated from the source above.")
        for each in alignments
    ]
    lead = "Attention to the source for each generated token; darker is more."
    return write_figures(picture_file(path), "Alignment", figures, lead=lead)


def _task(model: ModelSource, on_event: OnEvent) -> SequenceToSequence:
    known = load_model(model, on_event)
    if not isinstance(known.task, SequenceToSequence):
        remedy = f"train one with keel finetune transformer SOURCES TARGETS --task {SequenceToSequence.name}"
        if known.task is None and isinstance(known.system, LanguageModelSystem):
            remedy = "prompt it with examples by --by-pattern, or use keel generate"
        raise UsageError(f"{known.card.title or 'the model'} is no seq2seq model: {remedy}")
    return known.task


def _by_prompt(
    model: Model, texts: Iterable[str], pairs: list[tuple[str, str]], on_event: OnEvent, settings: Mapping[str, Any]
) -> Iterator[list[GeneratedText]]:
    for text in texts:
        if text.strip():
            yield [few_shot_translation(text, pairs, model=model, on_event=on_event, **settings)]
        else:
            yield [GeneratedText("")]


def _by_search(
    task: SequenceToSequence, texts: Iterator[str], batch_size: int, on_event: OnEvent
) -> Iterator[list[GeneratedText]]:
    while batch := list(islice(texts, batch_size)):
        try:
            found = task.predict(_examples(task, batch), on_event=on_event).generated if "".join(batch).strip() else []
        except SearchInterrupted as stopped:
            raise SearchInterrupted(_with_empty(batch, stopped.found)) from None
        yield from _with_empty(batch, found)


def _with_empty(texts: list[str], found: list[list[GeneratedText]]) -> list[list[GeneratedText]]:
    rest = iter(found)
    return [next(rest) if text.strip() else [GeneratedText("", 0.0, 0.0)] for text in texts]


def _traced(
    task: SequenceToSequence, texts: list[str], path: str | Path, on_event: OnEvent
) -> Iterator[list[GeneratedText]]:
    if empty := next((number for number, text in enumerate(texts, 1) if not text.strip()), 0):
        raise UsageError(f"--trace cannot show text {empty}, which is empty: leave it out")
    steps = DecodingTrace()
    data = task.encode_examples(_examples(task, texts), labelled=False, on_event=on_event)
    found, paths = task.predict_traced(data, steps, on_event)
    sources = [readable_tokens(task.tokenizer, ids) for ids in data.id_lists()]
    answers = [
        [{"text": each.text, "score": each.score, "log_probability": each.log_probability} for each in best]
        for best in found
    ]
    prompts: list[list[int]] = [[] for _ in texts]
    shown = decoding_data(
        steps, task.target_tokenizer, task.decoding, prompts=prompts, answers=answers, written=paths, sources=sources
    )
    write_trace(path, shown, on_event)
    yield from found


def _examples(task: SequenceToSequence, texts: list[str]) -> Examples:
    items = [task.make_example(text, number) for number, text in enumerate(texts) if text.strip()]
    return Examples.of(items, None, "the texts")
