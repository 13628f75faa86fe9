"""Keel: pre-train on your own text, fine-tune on your own labels, compare the generations side by side, look inside."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keel.api.conversion import convert
    from keel.api.evaluation import evaluate
    from keel.api.finetuning import finetune
    from keel.api.inference import embed, fill, predict
    from keel.api.inspection import layers
    from keel.api.pretraining import pretrain
    from keel.api.prompting import Prompted, ask, summarize
    from keel.api.settings import TextSettings, VocabularySettings
    from keel.api.sklearn_classifier import Classifier
    from keel.api.text_generation import generate, perplexity
    from keel.api.translation import translate
    from keel.api.vectors import analogy, nearest, odd, senses, similarity, word_map
    from keel.checks import Finding, Report, check
    from keel.data.corpus import Corpus
    from keel.data.examples import Columns
    from keel.data.predictions import ChoicePrediction, EntitySpan, GeneratedText, Prediction, TaggedText
    from keel.data.token_store import Tokens
    from keel.data.tokenizer import Tokenizer
    from keel.errors import Interrupted, KeelError, UsageError
    from keel.explain.layer_weights import Layers
    from keel.explain.nearest_neighbors import Neighbor
    from keel.explain.perplexity import Perplexity
    from keel.explain.word_senses import Senses
    from keel.formats.vector_files import Vectors
    from keel.generation.beam_search import BeamSearch
    from keel.generation.sampling import Sampling
    from keel.metrics.scores import PredictionError, Score, Scores
    from keel.model import Candidate, Model
    from keel.model_card import Card
    from keel.systems.bert import Bert
    from keel.systems.cnn import Cnn
    from keel.systems.elmo import Elmo
    from keel.systems.fasttext import FastText
    from keel.systems.glove import Glove
    from keel.systems.gpt import Gpt
    from keel.systems.ngram import Ngram
    from keel.systems.nnlm import Nnlm
    from keel.systems.onehot import Onehot
    from keel.systems.rnn import Rnn
    from keel.systems.seq2seq import Seq2seq
    from keel.systems.transformer import Transformer
    from keel.systems.ulmfit import Ulmfit
    from keel.systems.word2vec import Word2vec
    from keel.systems.wordclass import Wordclass
    from keel.tasks.head_settings import HeadSettings
    from keel.text_vectors import TokenVectors
    from keel.training.plan import Train

__version__ = "0.1.0"

__all__ = [
    "BeamSearch",
    "Bert",
    "Candidate",
    "Card",
    "ChoicePrediction",
    "Classifier",
    "Cnn",
    "Columns",
    "Corpus",
    "Elmo",
    "EntitySpan",
    "FastText",
    "Finding",
    "GeneratedText",
    "Glove",
    "Gpt",
    "HeadSettings",
    "Interrupted",
    "KeelError",
    "Layers",
    "Model",
    "Neighbor",
    "Ngram",
    "Nnlm",
    "Onehot",
    "Perplexity",
    "Prediction",
    "PredictionError",
    "Prompted",
    "Report",
    "Rnn",
    "Sampling",
    "Score",
    "Scores",
    "Senses",
    "Seq2seq",
    "TaggedText",
    "TextSettings",
    "TokenVectors",
    "Tokenizer",
    "Tokens",
    "Train",
    "Transformer",
    "Ulmfit",
    "UsageError",
    "Vectors",
    "VocabularySettings",
    "Word2vec",
    "Wordclass",
    "analogy",
    "ask",
    "check",
    "convert",
    "embed",
    "evaluate",
    "fill",
    "finetune",
    "generate",
    "layers",
    "nearest",
    "odd",
    "perplexity",
    "predict",
    "pretrain",
    "senses",
    "similarity",
    "summarize",
    "translate",
    "word_map",
]
_MODULES = {
    "keel.api.conversion": "convert",
    "keel.api.evaluation": "evaluate",
    "keel.api.finetuning": "finetune",
    "keel.api.inference": "embed fill predict",
    "keel.api.inspection": "layers",
    "keel.api.pretraining": "pretrain",
    "keel.api.prompting": "Prompted ask summarize",
    "keel.api.settings": "TextSettings VocabularySettings",
    "keel.api.sklearn_classifier": "Classifier",
    "keel.api.text_generation": "generate perplexity",
    "keel.api.translation": "translate",
    "keel.api.vectors": "analogy nearest odd senses similarity word_map",
    "keel.checks": "Finding Report check",
    "keel.data.corpus": "Corpus",
    "keel.data.examples": "Columns",
    "keel.data.predictions": "ChoicePrediction EntitySpan GeneratedText Prediction TaggedText",
    "keel.data.token_store": "Tokens",
    "keel.data.tokenizer": "Tokenizer",
    "keel.errors": "Interrupted KeelError UsageError",
    "keel.explain.layer_weights": "Layers",
    "keel.explain.nearest_neighbors": "Neighbor",
    "keel.explain.perplexity": "Perplexity",
    "keel.explain.word_senses": "Senses",
    "keel.formats.vector_files": "Vectors",
    "keel.generation.beam_search": "BeamSearch",
    "keel.generation.sampling": "Sampling",
    "keel.metrics.scores": "PredictionError Score Scores",
    "keel.model": "Candidate Model",
    "keel.model_card": "Card",
    "keel.systems.bert": "Bert",
    "keel.systems.cnn": "Cnn",
    "keel.systems.elmo": "Elmo",
    "keel.systems.fasttext": "FastText",
    "keel.systems.glove": "Glove",
    "keel.systems.gpt": "Gpt",
    "keel.systems.ngram": "Ngram",
    "keel.systems.nnlm": "Nnlm",
    "keel.systems.onehot": "Onehot",
    "keel.systems.rnn": "Rnn",
    "keel.systems.seq2seq": "Seq2seq",
    "keel.systems.transformer": "Transformer",
    "keel.systems.ulmfit": "Ulmfit",
    "keel.systems.word2vec": "Word2vec",
    "keel.systems.wordclass": "Wordclass",
    "keel.tasks.head_settings": "HeadSettings",
    "keel.text_vectors": "TokenVectors",
    "keel.training.plan": "Train",
}
"""Modules of the public names, as in the imports above."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `import keel` alone does not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'keel' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
