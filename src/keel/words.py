"""What vectors of words know, as verbs: nearest, analogy, similarity, odd."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore
from keel.explain.approximate import Approximate
from keel.explain.neighbours import By, Neighbour, Space, nearest_texts
from keel.formats.vectors import looks_like_vectors, read_vectors
from keel.model import Model
from keel.run import route
from keel.tasks.examples import Columns, read_examples


def nearest(
    query: str,
    *,
    model: Model | str | Path,
    among: Any = None,
    top: int = 10,
    approximate: bool = False,
    on_event: OnEvent = ignore,
    **settings: Any,
) -> list[Neighbour]:
    """The words nearest to one, or the texts of a file or list nearest to a text, the nearest first.

    `approximate` asks an index of the words, which is made once and kept, instead of looking at all of them.
    """
    if among is None:
        model = model if _is_file_of_vectors(model) else loaded(model, on_event)
        space = space_of(model, on_event)
        asked: str | np.ndarray = query
        if isinstance(model, Model) and model.system.spells and space.find(query) is None:
            asked = _known(model.encode(query, on_event=on_event), query)  # what it never met it can spell
        return space.nearest(asked, top=top, index=Approximate.of(space, on_event) if approximate else None)
    if approximate:
        raise UsageError("an index is kept for words, and not for texts: leave out --approximate or --in")
    known = loaded(model, on_event)
    (columns,) = route(settings, Columns())
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
) -> list[Neighbour]:
    """What "king - man + woman" comes to: the words nearest to it, those of the question left out."""
    return space_of(model, on_event).analogy(expression, top=top, by=by)


def odd(words: str | Sequence[str], *, model: Model | str | Path, on_event: OnEvent = ignore) -> list[Neighbour]:
    """Of three or more words the odd one out comes first: each with its mean cosine to the others."""
    return space_of(model, on_event).odd_one_out(words.split() if isinstance(words, str) else words)


def similarity(first: str, second: str, *, model: Model | str | Path, on_event: OnEvent = ignore) -> float:
    """The cosine between two words, or between two texts by the means of their vectors."""
    vectors = loaded(model, on_event).encode([first, second], on_event=on_event)
    one, two = (_known(vector, text) for vector, text in zip(vectors, (first, second), strict=True))
    return float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))


def loaded(model: Model | str | Path, on_event: OnEvent = ignore) -> Model:
    """A model, read from its folder if that is what is given."""
    return model if isinstance(model, Model) else Model.load(model, device="auto", on_event=on_event)


def space_of(model: Model | str | Path, on_event: OnEvent = ignore) -> Space:
    """The words of a model, or of a file of vectors, which needs to be no model for this."""
    if not isinstance(model, Model) and _is_file_of_vectors(model):
        vectors = read_vectors(model, on_event=on_event)
    else:
        vectors = loaded(model, on_event).space()
    return Space(vectors.words, vectors.matrix)


def _is_file_of_vectors(model: Model | str | Path) -> bool:
    return not isinstance(model, Model) and looks_like_vectors(model)


def _known(vector: np.ndarray, text: str) -> np.ndarray:
    """The vector of a text, refused if no word of it is known: it would be near to nothing."""
    if not vector.any():
        raise KeelError(f"the model knows no word of {text!r}: take others (keel nearest shows those it knows)")
    return vector
