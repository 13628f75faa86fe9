"""What a model is and what it can do: the facts that the studio's pages choose models by."""

from typing import Any

from keel.api.bias import supported_methods
from keel.api.inference import predicts_next_sentence
from keel.data.sentence_splitting import vocabulary_language
from keel.explain.attributions.prediction_layouts import EXPLAINED_TASKS
from keel.explain.trace.model_tracing import supports_trace
from keel.formats.folder_architecture import WORD_HEAD
from keel.model import Model
from keel.nn.multihead_attention import MultiHeadAttention
from keel.systems.capabilities import CausalLM, MaskedLM
from keel.systems.static_vectors import StaticEncoder
from keel.tasks.answer import SpanAnswering
from keel.tasks.choose import MultipleChoice
from keel.tasks.sequence_to_sequence import SequenceToSequence


def capabilities(model: Model) -> list[str]:
    """The names of the views that work with a model."""
    encoder, task, objective = model.encoder, model.task, model.objective
    generates = task is None and isinstance(objective, CausalLM)
    attends = any(isinstance(module, MultiHeadAttention) for module in encoder.modules())
    several = encoder.layer_count > 1
    found = {
        "fill": isinstance(objective, MaskedLM) and WORD_HEAD not in model.missing,
        "next_sentence": predicts_next_sentence(model),
        "generate": generates,
        "ask": generates or isinstance(task, SpanAnswering),
        "predict": task is not None and not isinstance(task, SpanAnswering | SequenceToSequence | MultipleChoice),
        "translate": isinstance(task, SequenceToSequence),
        "nearest": encoder.word_embeddings() is not None and not encoder.sparse,
        "bias": bool(supported_methods(model)),
        "clusters": not isinstance(task, SequenceToSequence),
        "similarity": not isinstance(task, SequenceToSequence),
        "senses": not encoder.bag_of_words and not isinstance(task, SequenceToSequence),
        "attention": attends or isinstance(task, SequenceToSequence),
        "layers": task is not None and task.mix is not None,
        "probes": several and not encoder.bag_of_words,
        "retrieval": several and not encoder.sparse and not isinstance(task, SequenceToSequence),
        "trace": supports_trace(model),
        "explain": task is not None and task.name in EXPLAINED_TASKS,
    }
    return [name for name, holds in found.items() if holds]


def describe(model: Model) -> dict[str, Any]:
    """The facts of a model for a listing, as plain data."""
    encoder, task = model.encoder, model.task
    modules = [module for module in (encoder, model.objective, task) if module is not None]
    parameters = {id(weight): weight.numel() for module in modules for weight in module.parameters()}
    attention = [module for module in encoder.modules() if isinstance(module, MultiHeadAttention)]
    card = {"text": model.card.text, "parent": model.card.parent, "hardware": model.card.hardware}
    return {
        "system": model.system.name,
        "task": task.name if task else None,
        "pair": task is not None and task.pair,
        "labels": list(model.label_names),
        "parameters": sum(parameters.values()),
        # The outline of a file of vectors has its first words only; a padded table has more rows than tokens.
        "vocabulary": encoder.vocab_size if isinstance(encoder, StaticEncoder) else len(model.tokenizer),
        "language": vocabulary_language(model.tokenizer.vocabulary()),
        "layers": len(encoder.blocks()),
        "heads": attention[0].heads if attention else 0,
        "card": {name: value for name, value in card.items() if value},
        "scores": model.card.score_texts(),
        "can": capabilities(model),
    }
