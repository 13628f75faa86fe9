"""The model that a verb is given: a Model, its folder or file, or a word vector file."""

from collections.abc import Sequence
from pathlib import Path

from keel.errors import UsageError
from keel.events import OnEvent, ignore
from keel.explain.nearest_neighbors import VectorSpace
from keel.formats.registry import find_format
from keel.model import Model

ModelSource = Model | str | Path
"""A model, or the path of its folder or file."""


def load_model(model: ModelSource, on_event: OnEvent = ignore) -> Model:
    """Load a model, unless it is one already."""
    return model if isinstance(model, Model) else Model.load(model, device="auto", on_event=on_event)


def load_models(models: ModelSource | Sequence[ModelSource], on_event: OnEvent = ignore) -> list[Model]:
    """The models of an ensemble, or one."""
    several = [models] if isinstance(models, Model | str | Path) else list(models)
    if not several:
        raise UsageError("the list of models is empty: give one or more")
    return [load_model(model, on_event) for model in several]


def load_vectors(model: ModelSource, on_event: OnEvent = ignore) -> VectorSpace:
    """The word vectors of a model, or of a word vector file, for which no network is built."""
    if not isinstance(model, Model) and (found := find_format(model)) and found.read_vectors:
        vectors = found.read_vectors(Path(model), on_event)
        return VectorSpace(vectors.words, vectors.matrix)
    known = load_model(model, on_event)
    vectors = known.vector_space()
    return VectorSpace(vectors.words, vectors.matrix, known.encode if known.system.uses_subwords else None)
