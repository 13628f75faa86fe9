"""fastText (Bojanowski, Grave, Joulin & Mikolov, "Enriching Word Vectors with Subword Information", 2017).

New then: a word is the mean of a vector of its own and of one for each of its n-grams, the stretches of 3 to 6 letters
of "<word>". What is spelled alike then shares what it learned, and a word never met has a vector all the same. N-grams
are not listed but hashed into a fixed number of rows ("buckets").
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.errors import UsageError
from keel.systems.base import Rows, Spelling
from keel.systems.documents import Documents
from keel.systems.static import StaticEncoder
from keel.systems.word2vec import Word2vec, Word2vecTraining
from keel.text.tokenizer import Tokenizer
from keel.train.draw import Draw
from keel.train.objective import State, Tensors
from keel.train.plan import Train


@dataclass(frozen=True, kw_only=True)
class FastText(Word2vec):
    """The hyper-parameters of fastText; as they stand, those of its own program."""

    min_n: int = 3
    """Letters of the shortest n-grams, the marks < and > around a word counted."""
    max_n: int = 6
    """Letters of the longest; 0 for words alone."""
    buckets: int = 2_000_000
    """Vectors that n-grams share by their hash."""
    power: float = 0.5
    subsample: float = 1e-4

    name: ClassVar[str] = "fasttext"
    train: ClassVar[Train] = Train(epochs=5, batch=16, lr=0.05, warmup=0, evaluate_every=0, log_every=100, device="cpu")
    spells: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss != "negative":
            raise UsageError(f"fastText's vectors are learned by negative sampling here, not by loss {self.loss}")
        if not 0 <= self.min_n <= self.max_n:
            raise UsageError(f"min_n must lie between 0 and max_n ({self.max_n}), not at {self.min_n}")
        if self.buckets < 1:
            raise UsageError(f"buckets must be 1 or more, not {self.buckets}")

    def encoder(self, vocabulary: int) -> "FastTextEncoder":
        return FastTextEncoder(vocabulary, self.width, self.buckets)

    def objective(self, encoder: StaticEncoder, tokenizer: Tokenizer) -> "FastTextTraining":
        assert isinstance(encoder, FastTextEncoder)
        return FastTextTraining(self, encoder, tokenizer)

    def spelling(self, ids: Sequence[int], tokenizer: Tokenizer) -> Spelling:
        """The n-grams of these words; special pieces have none."""
        from keel.kernels.subwords import subwords

        specials = set(tokenizer.special_ids)
        words = ["" if number in specials else tokenizer.token_of(number) for number in ids]
        grams, starts = subwords(words, self.min_n, self.max_n, self.buckets)
        known = torch.tensor([number if number < len(tokenizer) else -1 for number in ids])
        return Spelling(words=known, parts=torch.from_numpy(grams), starts=torch.from_numpy(starts))


class FastTextEncoder(StaticEncoder):
    """The mean of a word's own vector, if it has one, and of those of its n-grams."""

    def __init__(self, vocabulary: int, width: int, buckets: int):
        super().__init__(vocabulary, width)
        # Rows of whole lanes from the start: to move hundreds of megabytes into such later takes their room twice.
        self.grams = nn.Embedding(buckets, width, _weight=torch.zeros(buckets, _in_lanes(width))[:, :width])
        for table in (self.words, self.grams):
            nn.init.uniform_(table.weight, -1 / width, 1 / width)

    def embed(self, rows: Rows) -> Tensor:
        assert rows.spelling is not None, "rows for fastText carry the spelling of their words (System.spelled)"
        sums, counts = self.sums(rows.spelling)
        return F.embedding(rows.ids, sums / counts.clamp(min=1)[:, None])

    def sums(self, spelling: Spelling) -> tuple[Tensor, Tensor]:
        """[words, width] the sum of the vectors that each word is the mean of, and [words] their number."""
        known = (spelling.words >= 0).to(self.words.weight.dtype)
        own = self.words(spelling.words.clamp(min=0)) * known[:, None]
        grams = F.embedding_bag(spelling.parts.long(), self.grams.weight, spelling.starts, mode="sum")
        return own + grams, known + spelling.sizes

    def met(self, spelling: Spelling) -> tuple[dict[str, Tensor], Spelling]:
        known = spelling.words >= 0
        words, places = spelling.words[known].unique(return_inverse=True)
        grams, parts = spelling.parts.long().unique(return_inverse=True)
        met = {"words": words, "grams": grams}
        return met, replace(spelling, words=spelling.words.masked_scatter(known, places), parts=parts)


@dataclass(frozen=True, kw_only=True)
class Foretold(Tensors):
    """What some words foretell, one window each, for those who want to see the loss."""

    inputs: Tensor  # [windows, words] the center; in CBOW the words near it
    there: Tensor  # [windows, words] 1 where there is one
    targets: Tensor  # [windows, targets] the words near, in CBOW the center, then drawn words
    signs: Tensor  # [windows, targets] 1 for what is right, -1 for what was drawn, 0 where there is nothing


class FastTextTraining(Word2vecTraining):
    """word2vec's loss with negatives, where v is the mean of all vectors of a word, which foretells each word near it;
    or in CBOW the mean of all vectors of all words near a word, which foretells that."""

    encoder: FastTextEncoder

    def __init__(self, system: FastText, encoder: FastTextEncoder, tokenizer: Tokenizer):
        super().__init__(system, encoder, tokenizer)
        self.tokenizer = tokenizer

    @cached_property
    def spelling(self) -> Spelling:
        """That of all words."""
        return self.system.spelling(range(len(self.tokenizer)), self.tokenizer)

    @cached_property
    def _bounds(self) -> np.ndarray:
        """[words + 1] where each word's n-grams start, and the end."""
        return np.append(self.spelling.starts.numpy(), len(self.spelling.parts))

    def batch(self, data: Documents, draw: Draw, rows: range) -> Foretold:
        """The windows of these rows: the very same that `update` learns from."""
        from keel.kernels.subwords import draw_targets, room
        from keel.kernels.windows import kept_words

        text, chances = self._prepared(data)
        system, bag = self.system, self.system.architecture == "cbow"
        found: list[list[np.ndarray]] = []
        for first, last, state in self._places(data, draw, rows):
            words, sentences = np.empty(last - first, np.int64), np.empty(last - first, np.int64)
            count, state = kept_words(*text, first, last, chances.keep, state, words, sentences)
            drawn = (system.window, chances.chances, chances.others, system.negatives, bag, np.uint64(state))
            tables = room(count, system.window, system.negatives)
            draw_targets(words, sentences, count, *drawn, *tables)
            found.append([words[:count, None], *tables])
        centers, near, targets, sizes = (
            torch.from_numpy(np.concatenate(column)).long() for column in zip(*found, strict=True)
        )
        some = sizes[:, 0] > 0
        inputs, targets, sizes = (near if bag else centers)[some], targets[some], sizes[some]
        there = torch.arange(inputs.shape[1]) < (sizes[:, :1] if bag else 1)
        place = torch.arange(targets.shape[1])
        signs = (place < sizes[:, 1:2]).float() * 2 - (place < sizes[:, 2:]).float()
        return Foretold(
            inputs=inputs.where(there, 0), there=there.float().expand_as(inputs),
            targets=targets.where(signs != 0, 0), signs=signs,
        )  # fmt: skip

    def counts(self, batch: Foretold) -> dict[str, Tensor]:
        return {"negative": (batch.signs > 0).sum().double(), "centers": torch.tensor(len(batch.inputs))}

    def forward(self, batch: Foretold, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        sums, counts = self.encoder.sums(self.spelling.take(batch.inputs.flatten()))
        sums = (sums.view(*batch.inputs.shape, -1) * batch.there[..., None]).sum(1)
        h = sums / (counts.view(batch.inputs.shape) * batch.there).sum(1, keepdim=True)  # [windows, width]
        scores = (F.embedding(batch.targets, self.contexts) @ h[..., None])[..., 0]  # [windows, targets]
        return {"negative": -(F.logsigmoid(scores * batch.signs) * batch.signs.abs()).sum()}, None

    def update(
        self, data: Documents, draw: Draw, rows: range, rate: float, threads: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        from keel.kernels.subwords import learn
        from keel.kernels.windows import kept_words

        text, chances = self._prepared(data)
        system, parts, starts = self.system, self.spelling.parts.numpy(), self._bounds
        inputs, grams, outputs = map(_laned, (self.encoder.words.weight, self.encoder.grams.weight, self.contexts))

        def one(places: list[tuple[int, int, np.uint64]]) -> tuple[float, int, int]:
            words, sentences = np.empty(system.length, np.int64), np.empty(system.length, np.int64)
            loss, predictions, read = 0.0, 0, 0
            for first, last, state in places:
                count, state = kept_words(*text, first, last, chances.keep, state, words, sentences)
                found = learn(
                    words,
                    sentences,
                    count,
                    inputs,
                    grams,
                    parts,
                    starts,
                    outputs,
                    system.window,
                    chances.chances,
                    chances.others,
                    system.negatives,
                    np.float32(rate),
                    np.uint64(state),
                    system.architecture == "cbow",
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


def _in_lanes(width: int) -> int:
    """The numbers of a row that whole lanes of 16 hold."""
    return -(-width // 16) * 16


def _laned(weight: Tensor) -> np.ndarray:
    """A table in rows of whole lanes, of which the parameter is a part; it is moved into such a one if need be."""
    rows, width = weight.shape
    wide = _in_lanes(width)
    if weight.stride(0) != wide or weight.untyped_storage().nbytes() < 4 * rows * wide:
        home = torch.zeros(rows, wide)
        home[:, :width] = weight.detach()
        weight.data = home[:, :width]
    return weight.detach().as_strided((rows, wide), (wide, 1)).numpy()
