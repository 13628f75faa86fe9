"""Vectors of labelled spans from every layer of a frozen encoder: one pass over the texts, the mean of a span's tokens.

A vector is stored as fp16: layers x spans x width x 2 bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from keel.data.input_windows import overlapping_windows
from keel.data.probing_data import ProbingData
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, note, pluralize
from keel.model import Model
from keel.nn.inference_loop import batched_inference
from keel.text_vectors import BATCH_TOKENS, BATCH_TOKENS_CPU
from keel.training.counter_rng import derive_seed

MAX_SUBWORDS = 64
"""Subwords of one word; longer words are garbage."""


@dataclass(frozen=True, eq=False)
class LayerFeatures:
    """The vectors of spans in all layers."""

    vectors: Tensor  # [layers, vectors, width] fp16, on the CPU
    index: np.ndarray  # [spans] the vector of each; -1 for a span without tokens, or longer than a window


class TextTokenization(NamedTuple):
    """The tokens of a text: units (words) that windows do not divide, and the tokens of each labelled span."""

    ids: list[int]
    unit_sizes: list[int]
    spans: list[tuple[int, int, int]]
    """Number of the span, first token, end."""


class SpanWindow(NamedTuple):
    """A part of a text that is read at once, with the spans that are taken from it."""

    ids: list[int]
    spans: list[tuple[int, int, int]]


def refuse_one_layer(model: Model) -> None:
    """Refuse a model without several layers of vectors per token."""
    encoder, system = model.encoder, model.system.name
    name = system if model.title == system else f"{model.title} ({system})"
    remedy = "use a network of several layers, such as bert, electra, gpt or elmo"
    if encoder.bag_of_words:
        raise UsageError(f"{name} has no vectors per token: {remedy}")
    if encoder.layer_count < 2:
        raise UsageError(f"{name} has one layer of vectors, so there is nothing to compare: {remedy}")


def random_twin(model: Model, seed: int) -> Model:
    """The same architecture and tokenizer with new random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "weights"))
        encoder = model.system.build_encoder(model.encoder.vocab_size)
    return replace(model, encoder=encoder, objective=None, task=None).to(model.device)


def layer_features(model: Model, data: ProbingData, on_event: OnEvent) -> LayerFeatures:
    """The vectors of all spans of the data; long texts are read in overlapping windows, each span where it has most
    context."""
    room = model.system.max_text_length(model.tokenizer)
    windows = [window for text in _tokenized(model, data, on_event) for window in _windows(text, room)]
    found = np.array(sorted(number for window in windows for number, *_ in window.spans), np.int64)
    index = np.full(len(data.spans), -1)
    index[found] = np.arange(len(found))
    if lost := len(index) - len(found):
        what = f"{pluralize(lost, 'span')} of {len(index):,} without a token, or longer than a window"
        note(on_event, f"{data.source}: {what} ({room:,} tokens): left out")
    inputs = [model.system.build_inputs(model.tokenizer, window.ids) for window in windows]
    encoder, largest = model.encoder, torch.finfo(torch.float16).max
    vectors = torch.empty(encoder.layer_count, len(found), encoder.width, dtype=torch.float16)

    def infer(chosen: np.ndarray) -> list[Tensor]:
        batch = TokenBatch.pad([inputs[number].ids for number in chosen])
        output = encoder(model.system.with_subword_units(batch, model.tokenizer).to(model.device), all_layers=True)
        return [layer.float().cpu() for layer in output.layers]

    most = BATCH_TOKENS_CPU if model.device.type == "cpu" else BATCH_TOKENS
    lengths = np.array([len(each.ids) for each in inputs])
    precision = "fp32" if model.precision == "auto" else model.precision
    batches = batched_inference(encoder, lengths, infer, batch_size=most, max_tokens=most, precision=precision)
    for chosen, layers in batches:
        time = layers[0].shape[1]
        spans = [
            (index[number], row * time + inputs[window].first_start + start, end - start)
            for row, window in enumerate(chosen)
            for number, start, end in windows[window].spans
        ]
        numbers, starts, sizes = (torch.tensor(column) for column in zip(*spans, strict=True))
        offsets = torch.arange(int(sizes.sum())) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        positions = starts.repeat_interleave(sizes) + offsets
        begins = (sizes.cumsum(0) - sizes).numpy()
        for layer, values in enumerate(layers):
            tokens = values.flatten(0, 1)[positions].numpy()
            means = torch.from_numpy(np.add.reduceat(tokens, begins)) / sizes[:, None]
            vectors[layer, numbers] = means.clamp(-largest, largest).half()
    return LayerFeatures(vectors, index)


def _tokenized(model: Model, data: ProbingData, on_event: OnEvent) -> list[TextTokenization]:
    """The texts of the data, with their spans in tokens."""
    tokenizer, subwords = model.tokenizer, model.system.uses_subwords
    room = model.system.max_text_length(tokenizer)
    words = [*dict.fromkeys(word for text in data.texts for word in text.words)]
    ids_of = _word_ids(tokenizer, words, min(MAX_SUBWORDS, max(1, room // 2)), subwords, data.source, on_event)
    whole = [text.text for text in data.texts if not text.words]
    encoded = iter(tokenizer.encode_with_offsets(whole, oov_ids=subwords) if whole else [])
    spans_of: list[list[tuple[int, int, int]]] = [[] for _ in data.texts]
    for number, (text, start, end) in enumerate(data.spans.tolist()):
        spans_of[text].append((number, start, end))
    found: list[TextTokenization] = []
    for text, spans in zip(data.texts, spans_of, strict=True):
        if text.words:
            parts = [ids_of[word] for word in text.words]
            edges = np.cumsum([0, *map(len, parts)]).tolist()
            located = [(number, edges[start], edges[end]) for number, start, end in spans]
            found.append(TextTokenization([id for part in parts for id in part], [*map(len, parts)], located))
            continue
        encoding = next(encoded)
        offsets = np.array(encoding.offsets).reshape(-1, 2)
        located = []
        for number, start, end in spans:
            inside = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > start))
            if len(inside):
                located.append((number, int(inside[0]), int(inside[-1]) + 1))
        changes = np.flatnonzero(np.diff(encoding.word_ids)) + 1
        sizes = np.diff(np.concatenate([[0], changes, [len(encoding.ids)]])).tolist()
        found.append(TextTokenization(encoding.ids, [size for size in sizes if size], located))
    return found


def _word_ids(
    tokenizer: Tokenizer, words: Sequence[str], most: int, subwords: bool, source: str, on_event: OnEvent
) -> dict[str, list[int]]:
    """The subword ids of each distinct word: at least one."""
    found = tokenizer.encode_words([*words], oov_ids=subwords) if words else []
    if empty := [word for word, ids in zip(words, found, strict=True) if not ids]:
        what = f"{pluralize(len(empty), 'word')}, such as {empty[0]!r}, without a token"
        note(on_event, f"{source}: {what}: treated as unknown words")
    return {word: ids[:most] or [tokenizer.unknown_id] for word, ids in zip(words, found, strict=True)}


def _windows(text: TextTokenization, room: int) -> list[SpanWindow]:
    """The windows of a text that any span is taken from."""
    if len(text.ids) <= room:
        return [SpanWindow(text.ids, text.spans)] if text.spans else []
    edges = np.cumsum([0, *text.unit_sizes]).tolist()
    units = overlapping_windows(text.unit_sizes, room)
    bounds = [(edges[each.start], min(edges[each.stop], edges[each.start] + room)) for each in units]
    taken: list[list[tuple[int, int, int]]] = [[] for _ in bounds]
    for number, start, end in text.spans:
        contexts = [min(start - first, last - end) for first, last in bounds]  # on the shorter side
        best = int(np.argmax(contexts))
        if contexts[best] >= 0:
            first, _ = bounds[best]
            taken[best].append((number, start - first, end - first))
    return [SpanWindow(text.ids[a:b], spans) for (a, b), spans in zip(bounds, taken, strict=True) if spans]
