"""The model that a verb is given: a Model, its folder or file, a word vector file, or the name of a bundled model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from keel.data.language_detection import LANGUAGE_NAMES, LATIN, Language, detect_language, is_traditional
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note
from keel.explain.nearest_neighbors import VectorSpace
from keel.formats.bundled_models import bundled_models
from keel.formats.registry import find_format
from keel.model import Model

ModelSource = Model | str | Path
"""A model, the path of its folder or file, or the name of a bundled model."""
Kind = Literal["encoder", "word vectors", "sentence embeddings", "causal language model", "seq2seq model"]
MULTILINGUAL = dict.fromkeys(("de", "fr", "es", "ru", "ja", "ko"), ("multilingual",))
DEFAULTS: Mapping[Kind, Mapping[str, tuple[str, ...]]] = {
    "encoder": {"en": ("english",), "zh": ("chinese",), **MULTILINGUAL},
    "word vectors": {"en": ("english-words",), "zh": ("chinese-words",)},
    "sentence embeddings": {"en": ("english-words",), "zh": ("chinese", "chinese-words"), **MULTILINGUAL},
    "causal language model": {"en": ("english-gpt",)},
    "seq2seq model": {},
}
"""Names of the bundled models by the language of the text, the best one first."""
FEW_WORDS = 3
"""Words below which a text in Latin script is taken for English: "die" and "me" are words of several languages."""


def default_model(kind: Kind, text: str, on_event: OnEvent) -> str:
    """The name of the bundled model for a text's language.

    Without one, German, French and Spanish get the English model with a note; texts in other scripts are refused, as
    their characters are unknown to it.
    """
    language = _language_of(text)
    name = _bundled_name(kind, language)
    if not name:
        of = f"for {LANGUAGE_NAMES[language]}" if language in LANGUAGE_NAMES else "for the language of this text"
        what = f"Keel comes with no {kind} {of}"
        name = _bundled_name(kind, "en") if language in LATIN else ""
        if not name:
            raise UsageError(f"{what}: choose a model with --model FOLDER")
        note(on_event, f"{what}: {name} is used, which has learned from English text alone")
    note(on_event, f"model: {name}, which comes with Keel; choose another one with --model")
    if language == "zh" and is_traditional(text):
        what = f"the text is in traditional characters, and {name} has learned simplified ones"
        note(on_event, f"{what}: convert it first, for example with OpenCC (opencc -c t2s)")
    return name


def default_vectors(words: Sequence[str], on_event: OnEvent) -> VectorSpace | None:
    """The bundled word vectors, if they know all of these words; None for texts and for other words."""
    text = " ".join(words)
    name = _bundled_name("word vectors", _language_of(text))
    space = load_vectors(name) if name else None
    if space is None or any(space.find(word) is None for word in words):
        return None
    default_model("word vectors", text, on_event)
    return space


def _language_of(text: str) -> Language:
    language = detect_language(text) or "en"
    return "en" if language in LATIN and len(text.split()) < FEW_WORDS else language


def _bundled_name(kind: Kind, language: str) -> str:
    return next((name for name in DEFAULTS[kind].get(language, ()) if name in bundled_models()), "")


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
    """The word vectors of a model or of a word vector file."""
    known = load_model_or_vectors(model, on_event)
    return vector_space_of(known) if isinstance(known, Model) else known


def load_model_or_vectors(model: ModelSource, on_event: OnEvent = ignore) -> Model | VectorSpace:
    """A model, or the word vectors of a file, for which no network is built."""
    if not isinstance(model, Model) and (found := find_format(model)) and found.read_vectors:
        vectors = found.read_vectors(Path(model), on_event)
        return VectorSpace(vectors.words, vectors.matrix)
    return load_model(model, on_event)


def vector_space_of(model: Model) -> VectorSpace:
    """The word vectors of a model, looked up as its tokenizer normalizes words, with its subword vectors if it has
    any."""
    vectors = model.vector_space()
    subword_encoder = model.encode if model.system.uses_subwords else None
    return VectorSpace(vectors.words, vectors.matrix, subword_encoder, model.tokenizer.normalize_word)
