"""Language models: perplexity and text generation."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Unpack, overload

from keel.api.incremental_text import IncrementalText
from keel.api.keywords import DecodingKeywords, GenerateKeywords, TextKeywords
from keel.api.model_loading import ModelSource, load_model
from keel.api.settings import Source, TextSettings, corpus_of, merge_settings, route_settings
from keel.api.trace_files import TRACE, trace_writer
from keel.config import Doc
from keel.data.predictions import GeneratedText
from keel.data.text_inputs import Texts, text_inputs
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.explain.decoding_steps import decoding_data
from keel.explain.perplexity import Perplexity
from keel.explain.perplexity import perplexity as perplexity_of
from keel.explain.zero_shot import next_token_model
from keel.generation.beam_search import BeamSearch, Hypothesis, SearchInterrupted, beam_search
from keel.generation.decoding_trace import DecodingTrace
from keel.generation.next_token import new_token_budget
from keel.generation.sampling import Sampling, sample
from keel.generation.strategy import decoding_strategy

__all__ = ["generate", "perplexity"]

MAX_TOKENS = Doc("Maximum number of tokens to generate.")
MOST_BYTES = 4
"""Bytes of a character, each of which may be a token."""


def perplexity(
    model: ModelSource,
    source: Source,
    *,
    stride: Annotated[int | None, Doc("Tokens by which the context window moves; default: half of it.")] = None,
    text: TextSettings | None = None,
    on_event: OnEvent = ignore,
    **settings: Unpack[TextKeywords],
) -> Perplexity:
    """Perplexity of a text per token and per word (for Chinese, per character), and bits per byte.

    Sentences are split as in the model's training text. A model with a context window moves it by `stride` tokens
    (default: half the window).
    """
    known = load_model(model, on_event)
    defaults = TextSettings(sentences=known.card.recipe.get("text", {}).get("sentences", "auto"))
    (reading,) = route_settings(merge_settings(settings, text=text), defaults)
    corpus = corpus_of(source, reading.resolve(known.system), on_event)
    return perplexity_of(known, corpus, stride=stride, on_event=on_event)


@overload  # a str is one prompt, though also an iterable of strs
def generate(  # pyright: ignore[reportOverlappingOverload]
    prompt: str = "", *, model: ModelSource, best: None = None, **options: Unpack[GenerateKeywords]
) -> str: ...
@overload
def generate(prompt: str = "", *, model: ModelSource, best: int, **options: Unpack[GenerateKeywords]) -> list[str]: ...
@overload
def generate(
    prompt: Iterable[str], *, model: ModelSource, best: None = None, **options: Unpack[GenerateKeywords]
) -> list[str]: ...
@overload
def generate(
    prompt: Iterable[str], *, model: ModelSource, best: int, **options: Unpack[GenerateKeywords]
) -> list[list[str]]: ...
def generate(
    prompt: Texts = "",
    *,
    model: ModelSource,
    best: int | None = None,
    tokens: Annotated[int, MAX_TOKENS] = 50,
    stop: Annotated[
        str | Sequence[str], Doc("Stop string: the text ends before it; may be repeated.", repeated=True)
    ] = (),
    trace: Annotated[str | Path | None, TRACE] = None,
    on_text: Callable[[str], object] = str,
    on_event: OnEvent = ignore,
    **decoding: Unpack[DecodingKeywords],
) -> str | list[str] | list[list[str]]:
    """Continue a prompt by at most `tokens` tokens; several prompts are generated in one batch.

    By default tokens are sampled (`temperature`, `top_k`, `top_p`, `repetition_penalty`, `seed`: see `keel.Sampling`);
    with `beams` the most probable text is found by beam search (`length_penalty`), and with `best` a list of the n best
    texts. A text ends before any of the strings in `stop`. `on_text` streams the first text. `trace` is
    a folder, an .html or a .json file for how each token was chosen.
    """
    strategy = decoding_strategy(**decoding, best=best)
    prompts, one = text_inputs(prompt)
    found = continuations(
        prompts,
        model=model,
        strategy=strategy,
        tokens=tokens,
        stop=stop,
        on_trace=trace_writer(trace, on_event),
        on_text=lambda index, text: on_text(text) if index == 0 else None,
        on_event=on_event,
    )
    for first, *_ in found:
        if reason := empty_reason(first, strategy):
            note(on_event, reason)
    texts: list[Any] = [[each.text for each in listed] if best else listed[0].text for listed in found]
    return texts[0] if one else texts


def empty_reason(found: GeneratedText, strategy: Sampling | BeamSearch) -> str:
    """Why nothing was generated, and what may help; empty if there is a text."""
    if found.stopped and not found.text.strip():
        return "the model generated the stop string first"
    if found.text:
        return ""
    sampled = "another --seed, a higher --temperature, or a longer prompt may help"
    searched = "a longer prompt, a higher --length-penalty, or sampling without --beam may help"
    return f"the model ended the text at once: {searched if isinstance(strategy, BeamSearch) else sampled}"


def continuations(
    prompts: Sequence[str],
    *,
    model: ModelSource,
    strategy: Sampling | BeamSearch,
    tokens: int = 50,
    stop: str | Sequence[str] = (),
    stop_at_eos: bool | None = None,
    on_text: Callable[[int, str], object] = lambda index, text: None,
    on_trace: Callable[[dict[str, Any]], object] | None = None,
    on_event: OnEvent = ignore,
) -> list[list[GeneratedText]]:
    """Continuations of each prompt: one that is sampled, or the best of a beam search.

    `on_text` gets a prompt's index and each further part of its text, `on_trace` how each token was chosen
    (`decoding_data`). Sampling stops at the end-of-sequence token if `stop_at_eos`; by default only where that token
    ends a document.
    """
    known, stop = load_model(model, on_event), [stop] if isinstance(stop, str) else [*stop]
    generator, tokenizer = next_token_model(known), known.tokenizer
    stop_at_eos = known.system.default_sentences == "none" if stop_at_eos is None else stop_at_eos
    if "" in stop:
        raise UsageError("--stop is empty, and every text would end before it starts: give a longer string")
    inputs = [_encode(prompt, tokenizer, on_event) for prompt in prompts]
    fits = new_token_budget(generator, inputs, tokens) if tokens > 0 else tokens
    if fits < tokens:
        note(on_event, f"the context window has room for {fits:,} of {tokens:,} tokens after this prompt")
    steps, paths = None if on_trace is None else DecodingTrace(), None
    banned = set(tokenizer.special_ids) - {generator.eos_id}
    if isinstance(strategy, BeamSearch):
        reach = MOST_BYTES * max(map(len, stop), default=0)

        def ends(index: int, ids: list[int]) -> bool:
            return IncrementalText(tokenizer, [*inputs[index], *ids[:-reach]], stop).add(*ids[-reach:])

        def as_texts(answers: list[list[Hypothesis]]) -> list[list[GeneratedText]]:
            found = [
                [_continuation(IncrementalText(tokenizer, ids, stop), each) for each in best]
                for ids, best in zip(inputs, answers, strict=True)
            ]
            if stop:
                found = [_distinct(best)[: strategy.best] for best in found]
            for index, best in enumerate(found):
                if best:
                    on_text(index, best[0].text)
            return found

        search = replace(strategy, best=strategy.beams) if stop else strategy
        ended = ends if stop else None
        try:
            answers = beam_search(
                generator, inputs, search, max_new_tokens=fits, banned=banned, is_finished=ended, trace=steps
            )
        except SearchInterrupted as stopped:
            as_texts([best or stopped.best.get(index, []) for index, best in enumerate(stopped.found)])
            raise KeyboardInterrupt from None
        found, paths = as_texts(answers), [best.ids_with_eos for best, *_ in answers]
    else:
        texts = [IncrementalText(tokenizer, ids, stop) for ids in inputs]
        eos = [generator.eos_id] if stop_at_eos and generator.eos_id is not None else []
        for _ in sample(
            generator,
            inputs,
            strategy,
            max_new_tokens=fits,
            stop_ids=eos,
            banned=banned,
            trace=steps,
            is_finished=lambda index, number: texts[index].add(number),
        ):
            for index, text in enumerate(texts):
                on_text(index, text.new())
        for index, text in enumerate(texts):
            if rest := text.new(last=True):
                on_text(index, rest)
        found = [[GeneratedText(text.emitted, stopped=text.ended)] for text in texts]
    if on_trace is not None and steps is not None:
        answers = [[answer_data(each) for each in best] for best in found]
        on_trace(decoding_data(steps, tokenizer, strategy, prompts=inputs, answers=answers, written=paths))
    return found


def answer_data(found: GeneratedText) -> dict[str, Any]:
    """A continuation as plain data, for a trace or JSON."""
    return {name: getattr(found, name) for name in ("text", "score", "log_probability", "stopped")}


def _continuation(text: IncrementalText, found: Hypothesis) -> GeneratedText:
    whole = text.whole(found.ids)
    return GeneratedText(whole, found.score, found.log_prob, stopped=text.ended)


def _distinct(found: list[GeneratedText]) -> list[GeneratedText]:
    """The first of each text: several hypotheses may end in the same stop string."""
    firsts: dict[str, GeneratedText] = {}
    for each in found:
        firsts.setdefault(each.text, each)
    return [*firsts.values()]


def _encode(prompt: str, tokenizer: Tokenizer, on_event: OnEvent) -> list[int]:
    ids = tokenizer.encode(prompt).ids
    unknown = ids.count(tokenizer.unknown_id) if tokenizer.has_special_token("unk") else 0
    if ids and unknown == len(ids):
        raise KeelError(f"all words of {prompt!r:.80} are unknown to the model: use another prompt")
    if unknown:
        note(on_event, f"{unknown} of {len(ids)} words of the prompt are unknown to the model")
    return ids
