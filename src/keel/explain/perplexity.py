"""How well a model foretells a text, so that models with other pieces can be compared."""

from dataclasses import dataclass
from itertools import islice
from math import ceil, isfinite, isnan, log, nan
from typing import Any, Literal

import numpy as np
import torch

from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.sentence_splitting import SPLITTERS, detect_language
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, counted, ignore
from keel.metrics.scores import RESAMPLES, Score, Scores
from keel.model import Model
from keel.systems.system import SequentialEvaluation, WindowedEvaluation
from keel.training.counter_rng import CounterRng
from keel.training.objective import Objective

PARTS = 500
"""That a text is cut into, at most, to be resampled."""
ENOUGH = 100
"""Parts that are worth smaller batches."""
SYMBOLS = 257
"""That an unknown word is spelled with, all as likely: every byte, and an end."""


@dataclass(frozen=True, kw_only=True)
class Perplexity(Scores):
    """Perplexity by token (as the model cuts text) and by word or, of Chinese, by character, and bits by byte; `count`
    is of what was foretold.

    By token it is as papers have it, over all that the model foretells. By word and by byte, where a document ends is
    told to all models, and no mark there costs anything: some foretell two, some one, some none. Ends of other
    sentences are paid for by those who read them. A word that the vocabulary lacks costs its spelling too, at log(257)
    for each byte and for its end, so that who knows fewer words does not seem better. Words are what stands between
    blanks, in Chinese text characters, whatever the model's pieces are. Intervals are of 95 in 100 resamples of parts
    of the text, the spelling left as it is; a text that is one part has none.
    """

    losses: tuple[str, ...]
    """What was foretold, by name: one, or a direction each."""
    tokens: int
    unknown: int
    """Tokens that stand for what the vocabulary lacks: by token all of them are foretold as one, which flatters."""
    spelled_bytes: int
    """Of what the vocabulary lacks, as it stands in the text: what is spelled out by word and by byte."""
    words: int
    unit: Literal["word", "character"]
    bytes: int
    """Of the text in UTF-8, blank lines left out."""
    context: str
    """What a token is foretold from."""

    def __str__(self) -> str:
        lines = []
        for name in self.losses:
            figures = [
                f"{score:.4g} {what}"
                for what, score in (
                    ("by token", self.values[f"{name} by token"]),
                    (f"by {self.unit}", self.values[f"{name} by {self.unit}"]),
                    ("bits by byte", self.values[f"{name} bits by byte"]),
                )
            ]
            lines.append(f"{name}: perplexity {', '.join(figures)}")
        sizes = counted(self.words, self.unit), counted(self.bytes, "byte")
        read = f"{counted(self.tokens, 'token')} ({self.unknown:,} unknown), {', '.join(sizes)}"
        lines.append(f"{read}; {self.count:,} foretold, each {self.context}")
        if self.unknown:
            cost = f"{self.unknown:,} with {self.spelled_bytes:,} bytes, log2({SYMBOLS}) bits for each byte and end"
            lines.append(f"unknown tokens are spelled out by {self.unit} and by byte: {cost}; by token they are not")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which has no infinity."""
        plain = super().to_dict()
        for score in plain["values"].values():
            score |= {name: figure if figure is None or isfinite(figure) else None for name, figure in score.items()}
        return plain


def perplexity(model: Model, corpus: Corpus, *, stride: int | None = None, on_event: OnEvent = ignore) -> Perplexity:
    """Foretell every token of a corpus once; a model that carries a state reads it from its start to its end, and has
    read nothing before.

    One that reads a window at a time moves it on by `stride` tokens, unless told by half of it: the fewer, the more
    each token is foretold from, and the longer it takes.
    """
    if not model.system.is_causal_lm:
        what = f"{model.system.name} does not foretell the next word, so that it has no perplexity"
        raise UsageError(f"{what}: take a language model, such as ngram, nnlm, rnn, ulmfit or gpt")
    if model.objective is None:
        raise UsageError(f"{model.card.title or 'this model'} lacks what foretells words: take a pre-trained one")
    windowed = isinstance(model.objective, WindowedEvaluation)
    window = model.objective.window if isinstance(model.objective, WindowedEvaluation) else 0
    if stride is None:
        stride = -(-window // 2)
    elif not windowed:
        raise UsageError(f"{model.system.name} is moved on by no stride: leave out --stride")
    elif not 1 <= stride <= window:
        raise UsageError(f"--stride must lie between 1 and the {window} tokens of a window, not at {stride}")
    tokens = Tokens.build(corpus, model.tokenizer, words=model.system.needs_word_starts, on_event=on_event)
    data = Documents.of(tokens, least=1)
    words, size, unit = _measure(corpus)
    unknown = tokens.index["unknown"]
    spelled = _unknown_bytes(corpus, model.tokenizer) if unknown else 0
    spelling = (spelled + unknown) * log(SYMBOLS)
    context = model.system.context_description
    if windowed:
        context = f"all before it or at least {window - stride:,} (windows of {window:,}, stride {stride:,})"
    found = _foretell(model.objective, data, stride)
    values: dict[str, Score] = {}
    for name, (nats, counts) in found.items():
        means, inner = (np.array(_mean(*each)) for each in zip(nats, counts, strict=True))
        total = inner * counts[1].sum() + spelling
        with np.errstate(over="ignore"):  # words of thousands of letters
            by_token, by_word = np.exp(means), np.exp(total / words)
        values |= {
            f"{name} by token": _score(by_token),
            f"{name} by {unit}": _score(by_word),
            f"{name} bits by byte": _score(total / size / log(2)),
        }
    names = tuple(found)
    return Perplexity(
        main=f"{names[0]} by {unit}",
        values=values,
        count=int(found[names[0]][1][0].sum()),
        errors=[],
        losses=names,
        tokens=data.size,
        unknown=unknown,
        spelled_bytes=spelled,
        words=words,
        unit=unit,
        bytes=size,
        context=f"from {context}",
    )


def _foretell(objective: Objective, data: Documents, stride: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By loss: [2, parts] the sums of -log p over parts of the text, of all that is foretold and of that less the ends
    of documents; and of how many predictions."""
    device = next(objective.parameters()).device
    objective.eval()
    sums: dict[str, list[torch.Tensor]] = {}
    counts: dict[str, list[torch.Tensor]] = {}
    windowed = objective if isinstance(objective, WindowedEvaluation) else None
    total = windowed.window_count(data, stride) if windowed else objective.epoch_size(data)
    with torch.inference_mode():
        state = objective.initial_state(1)
        chunk = max(1, 4096 // windowed.window) if windowed else 64
        chunk = 1 if isinstance(objective, SequentialEvaluation) else max(1, min(chunk, total // ENOUGH))
        for start in range(0, total, chunk):
            rows = range(start, min(start + chunk, total))
            if windowed:
                batch = windowed.window_batch(data, stride, rows)
            elif isinstance(objective, SequentialEvaluation):
                batch = objective.sequential_batch(data, start)
            else:
                batch = objective.batch(data, CounterRng(seed=0, step=0, first_example=0, batch_size=len(rows)), rows)
            batch = batch.to(device)
            losses, state = objective(batch, state)
            predicted = objective.counts(batch)
            for name, loss in losses.items():  # one sum is of what foretells no marks
                sums.setdefault(name, []).append(loss.double().expand(2))
                counts.setdefault(name, []).append(predicted[name].double().expand(2))
    return {name: (_columns(sums[name]), _columns(counts[name])) for name in sums}


def _columns(parts: list[torch.Tensor]) -> np.ndarray:
    return torch.stack(parts, 1).cpu().numpy()


def _mean(nats: np.ndarray, counts: np.ndarray) -> tuple[float, float, float]:
    """The mean of -log p, and the interval of 95 in 100 resamples of parts of the text: nan of a single one."""
    starts = np.arange(0, len(nats), ceil(len(nats) / PARTS))
    parts = np.stack([np.add.reduceat(nats, starts), np.add.reduceat(counts, starts)])
    parts = parts[:, parts[1] > 0]
    if parts.shape[1] < 2:
        return nats.sum() / counts.sum(), nan, nan
    drawn = np.random.default_rng(0).multinomial(parts.shape[1], np.full(parts.shape[1], 1 / parts.shape[1]), RESAMPLES)
    resampled, sizes = parts @ drawn.T
    low, high = np.quantile(resampled / sizes, (0.025, 0.975))
    return nats.sum() / counts.sum(), low, high


def _score(figures: np.ndarray) -> Score:
    value, low, high = figures.tolist()
    return Score(value=value, low=None if isnan(low) else low, high=None if isnan(high) else high)


def _measure(corpus: Corpus) -> tuple[int, int, Literal["word", "character"]]:
    """How many words and bytes a corpus has, and what its words are."""
    chinese = detect_language("\n".join(block.text[:1000] for block in islice(corpus.blocks(), 100))) == "zh"
    words = size = 0
    before = ""
    for block in corpus.blocks():
        parts = block.text.split()
        # A word that is longer than a block goes on in the next.
        goes_on = not block.begins and bool(before[-1:].strip() and block.text[:1].strip())
        words += sum(map(len, parts)) if chinese else len(parts) - goes_on
        size += len(block.text.encode())
        before = block.text
    return words, size, "character" if chinese else "word"


def _unknown_bytes(corpus: Corpus, tokenizer: Tokenizer) -> int:
    """How many bytes the words have that the vocabulary lacks."""
    split = SPLITTERS[corpus.sentences]
    return sum(
        len(word.encode())
        for texts in corpus.texts()
        for word in tokenizer.unknown_words([sentence for text in texts for sentence in split(text)])
    )
