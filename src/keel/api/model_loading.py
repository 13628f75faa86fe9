"""The model that a verb names: a Model, its folder or a vector file."""

from pathlib import Path

from keel.events import OnEvent, ignore
from keel.explain.nearest_neighbors import VectorSpace
from keel.formats.vector_files import looks_like_vectors, read_vectors
from keel.model import Model


def _is_file_of_vectors(model: Model | str | Path) -> bool:
    return not isinstance(model, Model) and looks_like_vectors(model)


def load_model(model: Model | str | Path, on_event: OnEvent = ignore) -> Model:
    """A model, read from its folder if that is what is given."""
    return model if isinstance(model, Model) else Model.load(model, device="auto", on_event=on_event)


def load_vectors(model: Model | str | Path, on_event: OnEvent = ignore) -> VectorSpace:
    """The words of a model, or of a file of vectors, which needs to be no model for this."""
    if not isinstance(model, Model) and _is_file_of_vectors(model):
        vectors = read_vectors(model, on_event=on_event)
        return VectorSpace(vectors.words, vectors.matrix)
    known = load_model(model, on_event)
    vectors = known.vector_space()
    return VectorSpace(vectors.words, vectors.matrix, known.encode if known.system.uses_subwords else None)
