"""What vectors of words know, as verbs: nearest, analogy, similarity, odd, and a map of them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keel.api.model_loading import load_model, load_vectors
from keel.api.settings import route_settings
from keel.data.examples import Columns, read_examples
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, counted, ignore, note
from keel.explain.approximate_search import ApproximateIndex
from keel.explain.nearest_neighbors import By, Neighbor, nearest_texts, unit_vectors
from keel.explain.projection import ProjectionMethod, project
from keel.explain.word_senses import Senses, compare_senses, find_uses, use_vectors
from keel.model import Model
from keel.report import Page, draw_map, write_picture

SEVERAL = re.compile("[\\s,，、;；]+")
COLON = re.compile("[:：]")


def nearest(
    query: str,
    *,
    model: Model | str | Path,
    among: Any = None,
    top: int = 10,
    approximate: bool = False,
    on_event: OnEvent = ignore,
    **settings: Any,
) -> list[Neighbor]:
    """The words nearest to one, or the texts of a file or list nearest to a text, the nearest first.

    `approximate` asks an index of the words, which is made once and kept, instead of looking at all of them.
    """
    if among is None:
        space = load_vectors(model, on_event)
        return space.nearest(query, top=top, index=ApproximateIndex.of(space, on_event) if approximate else None)
    if approximate:
        raise UsageError("an index is kept for words, and not for texts: leave out --approximate or --in")
    known = load_model(model, on_event)
    (columns,) = route_settings(settings, Columns())
    texts = [example.text for example in read_examples(among, pair=False, columns=columns, on_event=on_event)]
    vectors = known.encode(texts, on_event=on_event)
    return nearest_texts(vectors, _known(known.encode(query, on_event=on_event), query), texts, top=top)


def analogy(
    expression: str,
    *,
    model: Model | str | Path,
    top: int = 5,
    by: By = "add",
    on_event: OnEvent = ignore,
) -> list[Neighbor]:
    """What "king - man + woman" comes to: the words nearest to it, those of the question left out."""
    return load_vectors(model, on_event).analogy(expression, top=top, by=by)


def odd(words: str | Sequence[str], *, model: Model | str | Path, on_event: OnEvent = ignore) -> list[Neighbor]:
    """Of three or more words the odd one out comes first: each with its mean cosine to the others.

    In one string they stand between blanks or commas; what is known with its comma is one word.
    """
    space = load_vectors(model, on_event)
    if isinstance(words, str):
        parts = [[word] if space.find(word) is not None else SEVERAL.split(word) for word in words.split()]
        words = [word for several in parts for word in several if word]
    return space.odd_one_out(words)


def similarity(first: str, second: str, *, model: Model | str | Path, on_event: OnEvent = ignore) -> float:
    """The cosine between two words, or between two texts by the means of their vectors."""
    vectors = load_model(model, on_event).encode([first, second], on_event=on_event)
    one, two = (_known(vector, text) for vector, text in zip(vectors, (first, second), strict=True))
    return float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))


def senses(
    word: str,
    sentences: Any,
    *,
    model: Model | str | Path,
    layer: int = -1,
    groups: int = 0,
    on_event: OnEvent = ignore,
    **settings: Any,
) -> Senses:
    """Which uses of a word mean the same: the cosines between its vectors in these sentences, and groups of them.

    `layer` is counted as in `Model.encode`; `groups` says how many there are, 0 leaves it open.
    """
    (columns,) = route_settings(settings, Columns())
    texts = [example.text for example in read_examples(sentences, pair=False, columns=columns, on_event=on_event)]
    uses = find_uses(word, texts)
    holding = {use.text for use in uses}
    if without := sum(text not in holding for text in texts):
        lacks, left = ("does", "it is") if without == 1 else ("do", "they are")
        what = f"{without:,} of {counted(len(texts), 'sentence')} {lacks} not hold {word!r}"
        note(on_event, f"{what}: {left} left out")
    known = load_model(model, on_event)
    encoded = known.encode([use.text for use in uses], layer=layer, pool="none", on_event=on_event)
    title = known.card.title or known.system.name
    return compare_senses(word, title, uses, use_vectors(uses, encoded), groups)


def word_map(
    model: Model | str | Path,
    *,
    out: str | Path,
    words: str | Sequence[str] = (),
    pairs: str | Sequence[tuple[str, str]] = (),
    top: int = 0,
    by: ProjectionMethod = "pca",
    seed: int = 0,
    on_event: OnEvent = ignore,
) -> Path:
    """Draw words as points of a plane into an .svg or .html file: those named, and the `top` most frequent ones.

    `pairs`, such as "king:queen man:woman", are joined by arrows. Nothing named is the 200 most frequent words.
    """
    path = Path(out)
    if path.suffix.lower() not in (".svg", ".html"):
        raise UsageError(f"{path} is neither .svg nor .html: name the map so that its form is known")
    space = load_vectors(model, on_event)
    joined = _pairs(pairs)
    named = [*(word for pair in joined for word in pair), *(SEVERAL.split(words) if isinstance(words, str) else words)]
    rows = [space.row(word) for word in named if word]
    spelled = [row for row, word in enumerate(space.words) if any(letter.isalpha() for letter in word)]
    rows = list(dict.fromkeys([*rows, *spelled[: top or (0 if rows else 200)]]))
    units = space.units(rows)
    flat = project(units, by, seed)
    place = {row: number for number, row in enumerate(rows)}
    arrows = [(place[space.row(one)], place[space.row(other)]) for one, other in joined]
    picture, without = draw_map([space.words[row] for row in rows], flat.points, arrows)
    says = [f"{len(rows):,} words by {'t-SNE' if by == 'tsne' else 'PCA'}."]
    if flat.explained_variance is not None:
        says.append(f"The plane keeps {flat.explained_variance:.0%} of their variance.")
    if len(arrows) > 1:
        says.append(f"In all dimensions the arrows have a cosine of {_parallel(units, arrows):.2f} on average.")
    if without:
        says.append(f"{without:,} points found no room for a name; point at one to see it.")
    note(on_event, " ".join(says))
    if path.suffix.lower() == ".svg":
        return write_picture(path, picture)
    page = Page(f"{Path(str(model)).name if not isinstance(model, Model) else model.card.title}: a map", broad=True)
    page.figure(picture, " ".join(says))
    return page.write(path)


def _pairs(pairs: str | Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    if not isinstance(pairs, str):
        return list(pairs)
    found = [tuple(COLON.split(pair)) for pair in SEVERAL.split(pairs) if pair]
    for pair in found:
        if len(pair) != 2 or not all(pair):
            raise UsageError(f"{':'.join(pair)!r:.60} is no pair: write two words with a colon between, as king:queen")
    return [(one, other) for one, other in found]


def _parallel(vectors: np.ndarray, arrows: list[tuple[int, int]]) -> float:
    """The mean cosine of the differences, each with each."""
    start, end = np.array(arrows).T
    units, _ = unit_vectors(vectors[end] - vectors[start])
    cosines = units @ units.T
    return float(cosines[~np.eye(len(arrows), dtype=bool)].mean())


def _known(vector: np.ndarray, text: str) -> np.ndarray:
    """The vector of a text, refused if no word of it is known: it would be near to nothing."""
    if not vector.any():
        raise KeelError(f"the model knows no word of {text!r}: take others (keel nearest shows those it knows)")
    return vector
