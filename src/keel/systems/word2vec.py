"""word2vec (Mikolov et al., "Efficient Estimation of Word Representations in Vector Space", 2013).

New then: no hidden layer at all, so that billions of words can be read. Skip-gram lets every word near a center
foretell it, CBOW their mean; and telling the true word from a few drawn ones (negative sampling) takes the place of a
softmax over the whole vocabulary. What is left is a vector for each word, the same in every sentence.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.errors import KeelError, UsageError
from keel.systems.documents import Documents
from keel.systems.static import StaticEncoder, StaticSystem
from keel.text.tokenizer import Tokenizer
from keel.train.draw import Draw, seed_of
from keel.train.objective import Kernel, State, Tensors
from keel.train.plan import Train


@dataclass(frozen=True, kw_only=True)
class Word2vec(StaticSystem):
    """The hyper-parameters of word2vec; as they stand, skip-gram with five negatives."""

    architecture: Literal["skipgram", "cbow"] = "skipgram"
    """Whether each near word foretells the center, or their mean does."""
    window: int = 5
    """Words on either side of a center, at most: the distance is drawn anew for each."""
    negatives: int = 5
    """Drawn words that the true one is told from."""
    power: float = 0.75
    """They are drawn by their frequency to this power."""
    subsample: float = 1e-3
    """Share of the text above which a word is passed over ever more often; 0 reads every word."""
    length: int = 1000
    """Words in a row of training."""

    name: ClassVar[str] = "word2vec"
    train: ClassVar[Train] = Train(
        epochs=5, batch=16, lr=0.025, warmup=0, evaluate_every=0, log_every=100, device="cpu"
    )
    tunable: ClassVar[tuple[str, ...]] = ("window", "negatives", "power", "subsample", "length", "architecture")

    def __post_init__(self) -> None:
        for name in ("width", "window", "negatives", "length"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.subsample < 0:
            raise UsageError(f"subsample must not be below 0, as {self.subsample} is")

    def objective(self, encoder: StaticEncoder, tokenizer: Tokenizer) -> "Word2vecTraining":
        return Word2vecTraining(self, encoder, tokenizer)


@dataclass(frozen=True, kw_only=True)
class Windows(Tensors):
    """Windows written out, one center each, for those who want to see the loss."""

    near: Tensor  # [centers, 2 x window] words around each center
    present: Tensor  # [centers, 2 x window] 1 where there is one
    targets: Tensor  # [centers, 1 + negatives] the center, then drawn words
    compared: Tensor  # [centers, 1 + negatives] 1 where there is one


class _Text(NamedTuple):
    """A corpus as the kernels read it."""

    ids: np.ndarray
    bounds: np.ndarray  # where sentences start, and the end
    begins: np.ndarray  # where each document starts
    ends: np.ndarray  # words up to each document's end


class _Chances(NamedTuple):
    """How words are drawn."""

    keep: np.ndarray  # [vocabulary] uint64: the chance to stay in the text, in 2^32
    chances: np.ndarray  # [vocabulary] uint64: Walker's alias method, in 2^32
    others: np.ndarray  # [vocabulary]


class Word2vecTraining(Kernel):
    """log sigmoid(u_o . v_i) + sum over k drawn words w of log sigmoid(-u_w . v_i), to be made large (item 15).

    v are the encoder's vectors, u the `contexts`, which only training needs.
    """

    def __init__(self, system: Word2vec, encoder: StaticEncoder, tokenizer: Tokenizer):
        super().__init__()
        self.system, self.encoder = system, encoder
        self.contexts = nn.Parameter(torch.zeros(encoder.vocabulary, encoder.width))
        self.specials = tokenizer.special_ids
        with torch.no_grad():
            encoder.words.weight[self.specials] = 0.0  # never met in training: an unknown word adds nothing to a mean
        self._kept: dict[int, tuple[_Text, _Chances]] = {}

    def rows(self, data: Documents) -> int:
        return math.ceil(data.size / self.system.length)

    def batch(self, data: Documents, draw: Draw, rows: range) -> Windows:
        """The windows of these rows: the very same that `update` learns from."""
        from keel.kernels.windows import kept_words, next_window

        text, chances = self._prepared(data)
        window, negatives = self.system.window, self.system.negatives
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for first, last, state in self._places(data, draw, rows):
            words, sentences = np.empty(last - first, np.int64), np.empty(last - first, np.int64)
            count, state = kept_words(*text, first, last, chances.keep, state, words, sentences)
            for center in range(count):
                near, targets = np.full(2 * window, -1), np.full(1 + negatives, -1)
                *_, state = next_window(
                    words, sentences, count, center, window, *chances[1:], negatives, np.uint64(state), near, targets
                )
                if near[0] >= 0:
                    found.append((near, targets))
        near = torch.from_numpy(np.array([pair[0] for pair in found], np.int64).reshape(-1, 2 * window))
        targets = torch.from_numpy(np.array([pair[1] for pair in found], np.int64).reshape(-1, 1 + negatives))
        return Windows(
            near=near.clamp(min=0), present=(near >= 0).float(), targets=targets.clamp(min=0),
            compared=(targets >= 0).float(),
        )  # fmt: skip

    def counts(self, batch: Windows) -> dict[str, Tensor]:
        predictions = batch.present.sum() if self.system.architecture == "skipgram" else batch.compared[:, 0].sum()
        return {"negative": predictions.double(), "centers": batch.compared[:, 0].sum()}

    def forward(self, batch: Windows, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        v = self.encoder.words(batch.near)  # [centers, near, width]
        u = F.embedding(batch.targets, self.contexts)  # [centers, targets, width]
        present = batch.present
        if self.system.architecture == "cbow":
            v = ((v * present[..., None]).sum(1) / present.sum(1, keepdim=True))[:, None]
            present = torch.ones_like(present[:, :1])
        scores = v @ u.transpose(1, 2)  # [centers, near or 1, targets]
        signs = torch.ones_like(scores)
        signs[..., 1:] = -1
        weights = present[..., None] * batch.compared[:, None]
        return {"negative": -(F.logsigmoid(scores * signs) * weights).sum()}, None

    def update(
        self, data: Documents, draw: Draw, rows: range, rate: float, threads: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        from keel.kernels import windows

        text, chances = self._prepared(data)
        learn = windows.skipgram if self.system.architecture == "skipgram" else windows.cbow
        inputs, outputs = self.encoder.words.weight.detach().numpy(), self.contexts.detach().numpy()
        length = self.system.length

        def one(places: list[tuple[int, int, np.uint64]]) -> tuple[float, int, int]:
            words, sentences = np.empty(length, np.int64), np.empty(length, np.int64)
            loss, predictions, read = 0.0, 0, 0
            for first, last, state in places:
                count, state = windows.kept_words(*text, first, last, chances.keep, state, words, sentences)
                found = learn(
                    words,
                    sentences,
                    count,
                    inputs,
                    outputs,
                    self.system.window,
                    chances.chances,
                    chances.others,
                    self.system.negatives,
                    np.float32(rate),
                    np.uint64(state),
                )
                loss, predictions, read = loss + found[0], predictions + found[1], read + last - first
            return loss, predictions, read

        places = list(self._places(data, draw, rows))
        if threads == 1:
            results = [one(places)]
        else:
            with ThreadPoolExecutor(threads) as pool:
                results = list(pool.map(one, [places[number::threads] for number in range(threads)]))
        loss, predictions, read = (sum(column) for column in zip(*results, strict=True))
        return {"negative": loss}, {"negative": predictions, "words": read}

    def _places(self, data: Documents, draw: Draw, rows: range) -> Any:
        """Of each row the numbers of its first word and the one past the last, and the state of its draws."""
        index, _ = draw.order(torch.arange(rows.start, rows.stop), self.rows(data))
        for row, number in zip(rows, index.tolist(), strict=True):
            first = number * self.system.length
            seed = seed_of(draw.seed, int(draw.step), "row", row)
            yield first, min(first + self.system.length, data.size), np.uint64(seed)

    def _prepared(self, data: Documents) -> tuple[_Text, _Chances]:
        """The corpus as plain arrays and the chances of its words, counted once."""
        if id(data) not in self._kept:
            ids = data.ids.numpy()
            ids = ids.view(f"u{ids.itemsize}")
            bounds = data.starts.numpy()
            first, last = data.spans.numpy().T
            text = _Text(ids, bounds, np.ascontiguousarray(bounds[first]), data.ends.numpy())
            counts = np.zeros(self.encoder.vocabulary, np.int64)
            for begin, stop in zip(bounds[first], bounds[last], strict=True):
                counts += np.bincount(ids[begin:stop], minlength=len(counts))
            counts[self.specials] = 0
            if (counts > 0).sum() < 2:
                raise KeelError("the corpus holds fewer than two words that come up often enough: give it more text")
            self._kept = {id(data): (text, _chances_of(counts, self.system.subsample, self.system.power))}
        return self._kept[id(data)]


def _chances_of(counts: np.ndarray, subsample: float, power: float) -> _Chances:
    """Keep a word with chance sqrt(t/f) + t/f for its share f of the text; draw it by counts^power."""
    share = counts / counts.sum()
    keep = np.ones_like(share)
    if subsample:
        ratio = subsample / np.maximum(share, 1e-30)
        keep = np.minimum(1.0, np.sqrt(ratio) + ratio)
    keep = np.where(counts > 0, keep, 0.0)
    weights = np.where(counts > 0, counts.astype(np.float64) ** power, 0.0)
    chances, others = alias_table(weights)
    return _Chances((keep * 2**32).astype(np.uint64), (chances * 2**32).astype(np.uint64), others)


def alias_table(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Walker's alias method: draw a place evenly, stay there with its chance, else go to its other."""
    scaled = weights * (len(weights) / weights.sum())
    chances, others = np.ones(len(weights)), np.arange(len(weights))
    small = [place for place in range(len(weights)) if scaled[place] < 1]
    large = [place for place in range(len(weights)) if scaled[place] >= 1]
    while small and large:
        low, high = small.pop(), large[-1]
        chances[low], others[low] = scaled[low], high
        scaled[high] -= 1 - scaled[low]
        if scaled[high] < 1:
            small.append(large.pop())
    return chances, others
