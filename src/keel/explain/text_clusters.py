"""Clusters of texts or words by their vectors: k-means, with the number of clusters by silhouette, and typical words.

k-means++ starts (Arthur & Vassilvitskii 2007), silhouette (Rousseeuw 1987), class-based TF-IDF (Grootendorst 2022).
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from keel.data.tagged_sentences import split_words
from keel.errors import KeelError, UsageError
from keel.events import pluralize
from keel.explain.nearest_neighbors import unit_vectors
from keel.localization import Verbatim, gettext_noop, translate
from keel.text_table import TextLines, cut_characters, translated_lines

MAX_CLUSTERS = 20
"""The largest number of clusters that "auto" tries."""
MOST_CLUSTERS = 200
SAMPLE = 5_000
"""Vectors on which the number of clusters is chosen."""
STARTS = 4
"""Starts of k-means; the one with the smallest distances is kept."""
STEPS = 100
WEAK = 0.1
"""Mean silhouette below which the clusters are reported as weak."""
TYPICAL, EXAMPLES, EXCERPT = 10, 3, 72
LIFT = 2
"""How many times as frequent a typical word is in its cluster as in the others, at least."""
NAME_WORDS = 3
"""Typical words in the name of a cluster."""
WORD = re.compile(r"[^\W\d_]")


class TypicalWord(NamedTuple):
    """A word with its score: class-based TF-IDF, or the cosine to the centre of a cluster of words."""

    word: str
    score: float


@dataclass(frozen=True, kw_only=True)
class TextCluster:
    """A cluster: its size, typical words, and the examples nearest to its centre."""

    size: int
    words: list[TypicalWord]
    examples: list[str]

    @property
    def name(self) -> str:
        """Its first typical words."""
        return ", ".join(each.word for each in self.words[:NAME_WORDS]) or self.examples[0][:20]


@dataclass(frozen=True, kw_only=True, eq=False)
class Clusters(TextLines):
    """Clusters of texts or words, the largest first."""

    model: str
    unit: Literal["text", "word"]
    texts: list[str]
    groups: np.ndarray  # [texts] index of each cluster
    similarities: np.ndarray  # [texts] cosine to the centre of the cluster
    clusters: list[TextCluster]
    silhouette: float
    """Mean silhouette: 1 for separate clusters, 0 where they overlap, negative if texts are in the wrong one."""
    tried: dict[int, float]
    """Mean silhouette by the number of clusters, where it was chosen by that."""

    def __repr__(self) -> str:
        counts = f"{pluralize(len(self.texts), self.unit)} in {pluralize(len(self.clusters), 'cluster')}"
        return f"Clusters({counts} by {self.model!r}, silhouette {self.silhouette:.2f})"

    @property
    def note(self) -> str:
        """Note that the clusters overlap; empty otherwise."""
        if len(self.clusters) < 2 or self.silhouette >= WEAK:
            return ""
        what = f"weak clusters (silhouette {self.silhouette:.2f}; separate ones are near 1)"
        return f"{what}: the {gettext_noop(self.unit)}s overlap"

    def lines(self) -> list[str]:
        """For each cluster its size, typical words and examples."""
        what = f"{pluralize(len(self.texts), self.unit)} in {pluralize(len(self.clusters), 'cluster')}"
        lines = [f"{what} by {self.model}, mean silhouette {self.silhouette:.3f}"]
        for number, each in enumerate(self.clusters, 1):
            words = ", ".join(word.word for word in each.words)
            lines += ["", Verbatim(f"{number}  {translate(pluralize(each.size, self.unit))}: {words}")]
            if self.unit == "text":
                lines += [Verbatim(f"   {_excerpt(example)}") for example in each.examples]
        if self.tried:
            shown = ", ".join(f"{count}: {value:.3f}" for count, value in self.tried.items())
            lines += ["", *translated_lines(f"silhouette by number of clusters: {shown}")]
        return [*lines, "", self.note] if self.note else lines

    def to_dict(self) -> dict[str, Any]:
        clusters = [
            {
                "name": each.name,
                "size": each.size,
                "words": [{"word": word.word, "score": round(word.score, 6)} for word in each.words],
                "examples": each.examples,
            }
            for each in self.clusters
        ]
        found = {"model": self.model, "unit": self.unit, "silhouette": round(self.silhouette, 6), "clusters": clusters}
        tried = {str(count): round(value, 6) for count, value in self.tried.items()}
        notes = {"note": self.note} if self.note else {}
        return {**found, "tried": tried, "groups": self.groups.tolist(), **notes}


def cluster_texts(
    texts: list[str],
    vectors: np.ndarray,
    model: str,
    count: int | Literal["auto"] = "auto",
    *,
    unit: Literal["text", "word"] = "text",
    seed: int = 0,
) -> Clusters:
    """Clusters of texts by the directions of their vectors, or of words.

    "auto" takes the number from 2 to 20 with the largest mean silhouette, computed with up to 5,000 of the vectors.
    """
    units, lengths = unit_vectors(vectors)
    if (zero := np.flatnonzero(lengths == 0)).size:
        what = f"{model} has no vector for {texts[zero[0]]!r:.60}"
        raise KeelError(f"{what}, whose words it does not know: leave out such {gettext_noop(unit)}s ({len(zero):,})")
    if len(texts) < 2:
        raise UsageError(f"clusters need two {gettext_noop(unit)}s or more, not {len(texts)}")
    different = len(np.unique(units, axis=0))
    largest = min(different, MOST_CLUSTERS)
    if count != "auto" and not 1 <= count <= largest:
        raise UsageError(
            f"{pluralize(different, f'different {unit}')} cannot form {count} clusters: choose 1 to {largest}"
        )
    tried: dict[int, float] = {}
    if count == "auto":
        sample = units[np.unique(np.linspace(0, len(units) - 1, min(len(units), SAMPLE)).astype(int))]
        choices = range(2, min(MAX_CLUSTERS, len(np.unique(sample, axis=0)) - 1) + 1)
        tried = {number: silhouette(sample, k_means(sample, number, seed)[0]) for number in choices}
        count = max(tried, key=lambda number: tried[number], default=1)
    groups, centers = k_means(units, count, seed)
    order = np.argsort(-np.bincount(groups, minlength=count), kind="stable")
    groups, centers = np.argsort(order)[groups], centers[order]
    similarities = np.einsum("nw,nw->n", units, unit_vectors(centers)[0][groups])
    typical = _typical_words(texts, groups, count) if unit == "text" else None
    clusters: list[TextCluster] = []
    for number in range(count):
        inside = np.flatnonzero(groups == number)
        nearest = inside[np.argsort(-similarities[inside], kind="stable")]
        words = [TypicalWord(texts[row], float(similarities[row])) for row in nearest[:TYPICAL]]
        examples = list(dict.fromkeys(texts[row] for row in nearest[: 20 * EXAMPLES]))[:EXAMPLES]
        clusters.append(TextCluster(size=len(inside), words=typical[number] if typical else words, examples=examples))
    return Clusters(
        model=model,
        unit=unit,
        texts=texts,
        groups=groups,
        similarities=similarities,
        clusters=clusters,
        silhouette=silhouette(units, groups),
        tried=tried,
    )


def k_means(vectors: np.ndarray, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Clusters [n] and centres [count, width] with the smallest sum of squared distances of four k-means++ starts."""
    rng = np.random.default_rng(seed)
    found = [_lloyd(vectors, _start_centers(vectors, count, rng)) for _ in range(STARTS if count > 1 else 1)]
    groups, centers, _ = min(found, key=lambda each: each[2])
    return groups, centers


def silhouette(units: np.ndarray, groups: np.ndarray) -> float:
    """Mean silhouette of unit vectors by cosine distance; singletons count 0, and a single cluster has 0.

    The mean distance 1 - x.y to all y of a cluster is 1 - x.(mean of y), so that no pair is computed.
    """
    count = int(groups.max()) + 1
    if count < 2:
        return 0.0
    sizes = np.bincount(groups, minlength=count)
    sums = _sums(units, groups, count)
    total = 0.0
    for start in range(0, len(units), SAMPLE):
        part, own = units[start : start + SAMPLE], groups[start : start + SAMPLE]
        rows = np.arange(len(part))
        products = part @ sums.T
        distances = 1 - products / sizes
        others = sizes[own] - 1
        inner = (sizes[own] - products[rows, own]) / np.maximum(others, 1)
        distances[rows, own] = np.inf
        outer = distances.min(1)
        values = (outer - inner) / np.maximum(np.maximum(inner, outer), 1e-12)
        total += float(values[others > 0].sum())
    return total / len(units)


def class_tf_idf(counts: Sequence[Counter[str]]) -> list[list[TypicalWord]]:
    """Words of each class by class-based TF-IDF, in descending order.

    W(t, c) = tf(t, c) log(1 + A / tf(t)) (Grootendorst 2022), where A is the mean number of words per class. Words less
    than twice as frequent in the class as in the others are left out, since function words come first otherwise.
    """
    totals: Counter[str] = Counter()
    for each in counts:
        totals.update(each)
    every = sum(totals.values())
    mean = every / max(1, len(counts))
    found: list[list[TypicalWord]] = []
    for each in counts:
        size = sum(each.values())
        scored = [
            TypicalWord(word, count * math.log(1 + mean / totals[word]))
            for word, count in each.items()
            if count * (every - size) >= LIFT * (totals[word] - count) * size
        ]
        found.append(sorted(scored, key=lambda one: (-one.score, one.word)))
    return found


def _typical_words(texts: list[str], groups: np.ndarray, count: int) -> list[list[TypicalWord]]:
    counts: list[Counter[str]] = [Counter() for _ in range(count)]
    for text, group in zip(texts, groups.tolist(), strict=True):
        words = split_words(text.lower(), chinese_words=True)
        counts[group].update(word for word in words if WORD.search(word) and (len(word) > 1 or not word.isascii()))
    return [words[:TYPICAL] for words in class_tf_idf(counts)]


def _start_centers(vectors: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Centres [count, width]: each further one is a vector, sampled by its squared distance to the nearest centre."""
    rows = [int(rng.integers(len(vectors)))]
    squares = np.einsum("nw,nw->n", vectors, vectors)
    nearest = np.full(len(vectors), np.inf)
    while len(rows) < count:
        center = vectors[rows[-1]]
        nearest = np.minimum(nearest, np.maximum(squares - 2 * vectors @ center + center @ center, 0))
        nearest[rows] = 0
        sums = np.cumsum(nearest, dtype=np.float64)
        rows.append(min(int(np.searchsorted(sums, rng.random() * sums[-1], "right")), len(vectors) - 1))
    return vectors[rows].astype(np.float32)


def _lloyd(vectors: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Clusters, centres and the sum of squared distances after Lloyd's iterations; an empty cluster gets the vector
    that is farthest from its centre."""
    squares = np.einsum("nw,nw->n", vectors, vectors)
    groups = np.full(len(vectors), -1)
    distances = squares
    for _ in range(STEPS):
        scores = vectors @ centers.T - np.einsum("cw,cw->c", centers, centers) / 2
        before, groups = groups, scores.argmax(1)
        distances = np.maximum(squares - 2 * scores[np.arange(len(vectors)), groups], 0)
        sizes = np.bincount(groups, minlength=len(centers))
        for empty in np.flatnonzero(sizes == 0):
            farthest = int(np.where(sizes[groups] > 1, distances, -1).argmax())
            sizes[groups[farthest]] -= 1
            groups[farthest], distances[farthest], sizes[empty] = empty, 0, 1
        if np.array_equal(groups, before):
            break
        centers = (_sums(vectors, groups, len(centers)) / sizes[:, None]).astype(np.float32)
    return groups, centers, float(distances.sum(dtype=np.float64))


def _sums(vectors: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    """[count, width] sums of the vectors of each cluster."""
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(count))
    filled = np.flatnonzero(np.bincount(groups, minlength=count))
    sums = np.zeros((count, vectors.shape[1]))
    sums[filled] = np.add.reduceat(vectors[order], starts[filled], axis=0, dtype=np.float64)
    return sums


def _excerpt(text: str) -> str:
    return cut_characters(" ".join(text.split()), EXCERPT)
