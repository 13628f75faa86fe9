"""Perplexity and bits per byte, comparable between models with different tokenizers."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, isfinite, isnan, log, nan
from typing import Any, Literal

import numpy as np
import torch

from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.language_detection import UNSPACED
from keel.data.sentence_splitting import SPLITTERS
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, ignore, pluralize
from keel.metrics.bootstrap import RESAMPLES, Score
from keel.metrics.scores import Scores
from keel.model import Model
from keel.nn.inference_loop import eval_mode
from keel.systems.capabilities import LanguageModelSystem, SequentialEvaluation, WindowedEvaluation
from keel.training.counter_rng import CounterRng
from keel.training.objective import Objective, Tensors

MAX_PARTS = 500
"""Maximum number of parts of a text that are resampled for the interval."""
MIN_PARTS = 100
"""Number of parts for which batches are made smaller."""
BYTE_SYMBOLS = 257
"""Symbols of the uniform byte model for unknown words: every byte, and an end."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Perplexity(Scores):
    """Perplexity per token (of the model's tokenizer) and per word (in Chinese, per character), and bits per byte;
    `count` is the number of predictions.

    Per token it is defined as in the papers, over all predictions. Per word and per byte, end-of-document tokens cost
    nothing, because some models predict two, some one, some none; other end-of-sentence tokens count for the models
    that predict them. An unknown word also costs log(257) for each of its bytes and its end, so that a smaller
    vocabulary does not look better. Words are separated by whitespace, whatever the tokenizer. Intervals are 95%
    bootstrap intervals over parts of the text; a text of one part has none.
    """

    losses: tuple[str, ...]
    """Names of the losses: one, or one per direction."""
    tokens: int
    unknown: int
    """Unknown tokens; perplexity per token treats all of them as one token, which flatters the model."""
    unknown_bytes: int
    """Bytes of the unknown words, which are charged per word and per byte."""
    words: int
    unit: Literal["word", "character"]
    bytes: int
    """UTF-8 bytes of the text without blank lines."""
    context: str
    """Context of each prediction."""

    def __str__(self) -> str:
        lines = []
        for name in self.losses:
            figures = [f"{self.values[f'{name} {what}']:.4g} {what}" for what in _units(self.unit)]
            of = f" ({name})" if len(self.losses) > 1 else ""
            lines.append(f"perplexity{of}: {', '.join(figures)}")
        sizes = pluralize(self.words, self.unit), pluralize(self.bytes, "byte")
        read = f"{pluralize(self.tokens, 'token')} ({self.unknown:,} unknown), {', '.join(sizes)}"
        lines.append(f"{read}; {self.count:,} predictions, each {self.context}")
        if self.unknown:
            what = f"{pluralize(self.unknown, 'unknown token')} with {self.unknown_bytes:,} bytes"
            cost = f"scored byte by byte by a uniform model of {BYTE_SYMBOLS} symbols"
            lines.append(f"{what}: {cost}, per {self.unit} and per byte")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without infinities."""
        plain = super().to_dict()
        for score in plain["values"].values():
            score |= {name: figure if figure is None or isfinite(figure) else None for name, figure in score.items()}
        return plain


def perplexity(model: Model, corpus: Corpus, *, stride: int | None = None, on_event: OnEvent = ignore) -> Perplexity:
    """Predict every token of a corpus once, a recurrent model from its initial state to the end of the text.

    A model with a fixed context is moved by `stride` tokens (default: half its window); a smaller stride gives more
    context and takes longer.
    """
    if not isinstance(model.system, LanguageModelSystem):
        what = f"{model.system.name} is not a causal language model and has no perplexity"
        raise UsageError(f"{what}: use a language model, such as ngram, nnlm, rnn, ulmfit or gpt")
    if model.objective is None:
        raise UsageError(f"{model.card.title or 'this model'} has no language model head: use a pre-trained model")
    window = model.objective.window if isinstance(model.objective, WindowedEvaluation) else 0
    if stride is None:
        stride = -(-window // 2)
    elif not window:
        raise UsageError(f"{model.system.name} has no fixed context: omit --stride")
    elif not 1 <= stride <= window:
        raise UsageError(f"--stride must be between 1 and the {window} tokens of the context, not {stride}")
    tokens = Tokens.build(corpus, model.tokenizer, words=model.system.needs_word_starts, on_event=on_event)
    data = Documents.of(tokens, least=1)
    words, size, unit = _measure(corpus)
    unknown = tokens.index["unknown"]
    unknown_bytes = _unknown_bytes(corpus, model.tokenizer) if unknown else 0
    unknown_cost = (unknown_bytes + unknown) * log(BYTE_SYMBOLS)
    context = model.system.context_description
    if window:
        context = f"all before it or at least {window - stride:,} (windows of {window:,}, stride {stride:,})"
    found = _losses(model.objective, data, stride)
    values: dict[str, Score] = {}
    for name, (nats, counts) in found.items():
        means, inner = map(_mean, nats, counts)
        total = inner * counts[1].sum() + unknown_cost
        with np.errstate(over="ignore"):  # words of thousands of characters
            figures = np.exp(means), np.exp(total / words), total / size / log(2)
        values |= {f"{name} {what}": _score(each) for what, each in zip(_units(unit), figures, strict=True)}
    names = tuple(found)
    return Perplexity(
        main=f"{names[0]} per {unit}",
        values=values,
        count=int(found[names[0]][1][0].sum()),
        errors=[],
        losses=names,
        tokens=data.size,
        unknown=unknown,
        unknown_bytes=unknown_bytes,
        words=words,
        unit=unit,
        bytes=size,
        context=f"from {context}",
    )


def _losses(objective: Objective, data: Documents, stride: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Per loss: sums of -log p over parts of the text, and numbers of predictions, each [2, parts]: all predictions,
    and those without end-of-document tokens."""
    device = next(objective.parameters()).device
    sums: dict[str, list[torch.Tensor]] = {}
    counts: dict[str, list[torch.Tensor]] = {}
    with torch.inference_mode(), eval_mode(objective):
        state = objective.initial_state(1)
        for batch in _batches(objective, data, stride):
            batch = batch.to(device)
            losses, state = objective(batch, state)
            predicted = objective.counts(batch)
            for name, loss in losses.items():  # a scalar loss has no end-of-document tokens
                sums.setdefault(name, []).append(loss.double().expand(2))
                counts.setdefault(name, []).append(predicted[name].double().expand(2))
    return {name: (_columns(sums[name]), _columns(counts[name])) for name in sums}


def _batches(objective: Objective, data: Documents, stride: int) -> Iterator[Tensors]:
    """The whole text, in batches of one part where the state is carried from part to part."""
    if isinstance(objective, SequentialEvaluation):
        yield from (objective.sequential_batch(data, number) for number in range(objective.epoch_size(data)))
        return
    windowed = objective if isinstance(objective, WindowedEvaluation) else None
    total = windowed.window_count(data, stride) if windowed else objective.epoch_size(data)
    chunk = max(1, min(4096 // windowed.window if windowed else 64, total // MIN_PARTS))
    for start in range(0, total, chunk):
        examples = range(start, min(start + chunk, total))
        rng = CounterRng(seed=0, step=0, first_example=0, batch_size=len(examples))
        yield windowed.window_batch(data, stride, examples) if windowed else objective.batch(data, rng, examples)


def _columns(parts: list[torch.Tensor]) -> np.ndarray:
    return torch.stack(parts, 1).cpu().numpy()


def _mean(nats: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Mean of -log p with its 95% bootstrap interval over parts of the text; nan for a single part."""
    starts = np.arange(0, len(nats), ceil(len(nats) / MAX_PARTS))
    parts = np.stack([np.add.reduceat(nats, starts), np.add.reduceat(counts, starts)])
    parts = parts[:, parts[1] > 0]
    mean, bounds = nats.sum() / counts.sum(), (nan, nan)
    if (count := parts.shape[1]) > 1:
        weights = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)
        resampled, sizes = parts @ weights.T
        bounds = np.quantile(resampled / sizes, (0.025, 0.975))
    return np.array([mean, *bounds])


def _score(figures: np.ndarray) -> Score:
    value, *bounds = figures.tolist()
    low, high = (None if isnan(bound) else bound for bound in bounds)
    return Score(value=value, low=low, high=high)


def _measure(corpus: Corpus) -> tuple[int, int, Literal["word", "character"]]:
    """Number of words and bytes of a corpus, and the unit of its words."""
    unspaced = corpus.language() in UNSPACED
    words = size = 0
    before = ""
    for block in corpus.blocks():
        parts = block.text.split()
        # A word longer than a block continues in the next one.
        continued = not block.begins and bool(before[-1:].strip() and block.text[:1].strip())
        words += sum(map(len, parts)) if unspaced else len(parts) - continued
        size += len(block.text.encode())
        before = block.text
    return words, size, "character" if unspaced else "word"


def _unknown_bytes(corpus: Corpus, tokenizer: Tokenizer) -> int:
    """Bytes of the words that are not in the vocabulary."""
    split = SPLITTERS[corpus.sentences]
    return sum(
        len(word.encode())
        for texts in corpus.texts()
        for word in tokenizer.unknown_words([sentence for text in texts for sentence in split(text)])
    )


def _units(unit: str) -> tuple[str, str, str]:
    return "per token", f"per {unit}", "bits per byte"
