"""Word vectors: nearest neighbours, analogies, similarity, odd one out, and word senses."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any, Unpack

import numpy as np

from keel.api.keywords import ColumnKeywords
from keel.api.model_loading import ModelSource, default_model, default_vectors, load_model, load_vectors
from keel.api.settings import Source, route_settings
from keel.config import Doc, Ge, enforces_bounds
from keel.data.examples import Columns, read_examples
from keel.data.text_inputs import require_text, text_inputs
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.explain.approximate_search import build_index
from keel.explain.nearest_neighbors import By, Neighbor, VectorSpace
from keel.explain.projection import project
from keel.explain.word_senses import Senses, compare_senses, find_uses, use_vectors
from keel.report.charts import Bar, bars, heat_map
from keel.report.html_page import picture_file, write_figures
from keel.report.scatter_map import draw_map
from keel.text_table import cut_characters

__all__ = ["analogy", "nearest", "odd", "senses", "similarity"]

SEPARATORS = re.compile("[\\s,，、;；]+")
MAX_NEIGHBORS, NAME_LENGTH = 100, 60
"""Neighbours that a figure shows, and characters of each."""
MAX_SENSES = 60
"""Uses of a word that a figure shows."""
MAX_USES = 300
"""Uses of a word that are compared by default: the time of clustering grows with their third power."""


@enforces_bounds
def nearest(
    query: str,
    *,
    model: ModelSource | None = None,
    among: Source | None = None,
    top: Annotated[int, Ge(1), Doc("Neighbours to show.")] = 10,
    approximate: Annotated[bool, Doc("Approximate search by an HNSW index, built once and cached.")] = False,
    out: Annotated[str | Path | None, Doc("Write the neighbours as a figure: .svg, .pdf, .png or .html.")] = None,
    on_event: OnEvent = ignore,
    **settings: Unpack[ColumnKeywords],
) -> list[Neighbor]:
    """The nearest neighbours of a word or, with `among`, the texts of a file or list nearest to a text.

    By default, the vectors are those of the bundled word vectors, or of the bundled encoder with `among` in Chinese.
    `approximate` searches an HNSW index of the vocabulary,
    which is built once and cached. `out` is the file of a figure: a page
    also shows a map of the neighbours.
    """
    path = None if out is None else picture_file(out)
    require_text(query, "the query")
    if among is None:
        space = load_vectors(model or default_model("word vectors", query, on_event), on_event)
        found = space.nearest(query, top=top, search=build_index(space, on_event) if approximate else None)
        if path is not None:
            write_neighbors(path, query, found, space.directions([query, *(each.word for each in found)]))
        return found
    if approximate:
        raise UsageError("--approximate is for words, not for the texts of --in: leave out one of them")
    known = load_model(model or default_model("sentence embeddings", query, on_event), on_event)
    texts = read_texts(among, settings, on_event)
    space = VectorSpace(texts, known.encode(texts, on_event=on_event))
    found = space.nearest(_non_zero(known.encode(query, on_event=on_event), query), top=top)
    if path is not None:
        write_neighbors(path, query, found)
    return found


def write_neighbors(path: str | Path, query: str, found: Sequence[Neighbor], vectors: np.ndarray | None = None) -> Path:
    """Write the cosines of neighbours as bars and, on a page, a map of the query and them by their `vectors`."""
    rows = [Bar(name=_shortened(each.word), value=each.score) for each in found[:MAX_NEIGHBORS]]
    figures = [(bars(rows, digits=3), f"Cosine to {query!r:.60}.")]
    if vectors is not None and len(found) > 1:
        points, explained_variance = project(vectors)
        groups = np.minimum(np.arange(len(points)), 1)
        picture, _ = draw_map([query, *(each.word for each in found)], points, groups=groups)
        caption = f"{query!r:.60} and its neighbours by PCA; the two components explain"
        figures.append((picture, f"{caption} {explained_variance:.0%} of the variance."))
    return write_figures(picture_file(path), f"Neighbours of {query!r:.60}", figures)


@enforces_bounds
def analogy(
    expression: str,
    *,
    model: ModelSource | None = None,
    top: Annotated[int, Ge(1), Doc("Words to show.")] = 5,
    by: Annotated[By, Doc("3CosAdd or 3CosMul.")] = "add",
    on_event: OnEvent = ignore,
) -> list[Neighbor]:
    """The words nearest to an expression such as "king - man + woman", without the words in it."""
    require_text(expression, "the expression")
    space = load_vectors(model or default_model("word vectors", expression, on_event), on_event)
    return space.analogy(expression, top=top, by=by)


def odd(words: str | Sequence[str], *, model: ModelSource | None = None, on_event: OnEvent = ignore) -> list[Neighbor]:
    """The odd one out of three or more words: each with its mean cosine to the others, in ascending order.

    In one string, words are separated by whitespace or commas; a word of the vocabulary may contain a comma.
    """
    given, one = text_inputs(words)
    space = load_vectors(model or default_model("word vectors", " ".join(given), on_event), on_event)
    if one:
        parts = [[word] if space.find(word) is not None else SEPARATORS.split(word) for word in given[0].split()]
        given = [word for part in parts for word in part if word]
    return space.odd_one_out(given)


def similarity(first: str, second: str, *, model: ModelSource | None = None, on_event: OnEvent = ignore) -> float:
    """Cosine similarity of two words or two texts.

    By default, words are compared by the bundled word vectors, which are better at it, and texts by the bundled encoder
    in Chinese and by the word vectors in English.
    """
    texts = [require_text(first, "the first text"), require_text(second, "the second text")]
    if model is None and (space := default_vectors(texts, on_event)):
        return space.similarity(first, second)
    known = load_model(model or default_model("sentence embeddings", " ".join(texts), on_event), on_event)
    vectors = known.encode(texts, on_event=on_event)
    one, two = (_non_zero(vector, text) for vector, text in zip(vectors, (first, second), strict=True))
    return float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))


@enforces_bounds
def senses(
    word: str,
    sentences: Source,
    *,
    model: ModelSource | None = None,
    layer: Annotated[int, Doc("Layer of the encoder: 0 for the embeddings, -1 for the top.")] = -1,
    groups: Annotated[int, Doc("Number of clusters; 0: estimated.")] = 0,
    sample: Annotated[int, Ge(2), Doc("Uses to compare; of more, a seeded sample.")] = MAX_USES,
    seed: Annotated[int, Ge(0), Doc("Random seed of the sample.")] = 0,
    out: Annotated[str | Path | None, Doc("Write the cosines as a figure: .svg, .pdf, .png or .html.")] = None,
    on_event: OnEvent = ignore,
    **settings: Unpack[ColumnKeywords],
) -> Senses:
    """Senses of a word: cosines between its contextual vectors in these sentences, and clusters of them.

    `layer` counts as in `Model.encode`; `groups` is the number of clusters, 0 to estimate it. Of more than `sample`
    uses, a sample by `seed` is compared. `out` is the file of a heat map of the cosines.
    """
    path = None if out is None else picture_file(out)
    require_text(word, "the word")
    texts = read_texts(sentences, settings, on_event)
    uses = find_uses(word, texts)
    used = {use.text for use in uses}
    if without := sum(text not in used for text in texts):
        note(on_event, f"{without:,} of {pluralize(len(texts), 'sentence')} without {word!r} left out")
    if len(uses) > sample:
        note(on_event, f"{word!r} occurs {len(uses):,} times: a sample of {sample:,} uses is compared")
        uses = [uses[number] for number in sorted(Random(seed).sample(range(len(uses)), sample))]
        used = {use.text for use in uses}
    known = load_model(model or default_model("encoder", " ".join(used), on_event), on_event)
    encoded = known.encode([use.text for use in uses], layer=layer, pool="none", on_event=on_event)
    title = known.card.title or known.system.name
    found = compare_senses(word, title, uses, use_vectors(uses, encoded), groups)
    if path is not None:
        write_senses(path, [found])
    return found


def write_senses(path: str | Path, found: Sequence[Senses]) -> Path:
    """Write heat maps of the cosines of uses, those of a cluster together, to a page, or the first one to a picture."""
    figures = []
    for each in found:
        order = sorted(range(len(each.uses)), key=lambda number: each.groups[number])[:MAX_SENSES]
        names = [f"{each.group_name(number)} · {each.uses[number].excerpt()}" for number in order]
        cosines = each.cosines[np.ix_(order, order)]
        caption = f"{each.model}: cosines between the uses of {each.word!r}, from 0 (or below) to 1. {each.note}"
        picture = heat_map([str(number) for number in range(1, len(order) + 1)], names, cosines)
        picture.set("style", "max-width: 60rem")
        figures.append((picture, caption))
    return write_figures(picture_file(path), f"Senses of {found[0].word!r}", figures, layout="broad")


def read_texts(source: Source, settings: Mapping[str, Any], on_event: OnEvent) -> list[str]:
    """The texts of a file, list or table."""
    (columns,) = route_settings(settings, Columns())
    examples = read_examples(source, pair=False, columns=columns.for_texts(), on_event=on_event)
    return [example.text for example in examples]


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return cut_characters(line, NAME_LENGTH)


def _non_zero(vector: np.ndarray, text: str) -> np.ndarray:
    """The vector of a text; a zero vector (all words unknown) is refused."""
    if not vector.any():
        raise KeelError(f"all words of {text!r} are unknown to the model: use others (keel nearest shows known ones)")
    return vector
