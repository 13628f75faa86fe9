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
    from keel.api.prompting import ask, summarize
    from keel.api.sklearn_classifier import Classifier
    from keel.api.text_generation import generate, perplexity
    from keel.api.translation import translate
    from keel.api.vectors import analogy, nearest, odd, senses, similarity, word_map
    from keel.checks import check
    from keel.data.corpus import Corpus
    from keel.data.token_store import Tokens
    from keel.data.tokenizer import Tokenizer
    from keel.errors import KeelError
    from keel.model import Model
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
    from keel.training.plan import Train

__version__ = "0.1.0"

__all__ = [
    "Bert",
    "Classifier",
    "Cnn",
    "Corpus",
    "Elmo",
    "FastText",
    "Glove",
    "Gpt",
    "KeelError",
    "Model",
    "Ngram",
    "Nnlm",
    "Onehot",
    "Rnn",
    "Seq2seq",
    "Tokenizer",
    "Tokens",
    "Train",
    "Transformer",
    "Ulmfit",
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
_HOMES = {
    "convert": "keel.api.conversion",
    "evaluate": "keel.api.evaluation",
    "finetune": "keel.api.finetuning",
    "embed": "keel.api.inference",
    "fill": "keel.api.inference",
    "predict": "keel.api.inference",
    "layers": "keel.api.inspection",
    "pretrain": "keel.api.pretraining",
    "ask": "keel.api.prompting",
    "summarize": "keel.api.prompting",
    "Classifier": "keel.api.sklearn_classifier",
    "generate": "keel.api.text_generation",
    "perplexity": "keel.api.text_generation",
    "translate": "keel.api.translation",
    "analogy": "keel.api.vectors",
    "nearest": "keel.api.vectors",
    "odd": "keel.api.vectors",
    "senses": "keel.api.vectors",
    "similarity": "keel.api.vectors",
    "word_map": "keel.api.vectors",
    "check": "keel.checks",
    "Corpus": "keel.data.corpus",
    "Tokens": "keel.data.token_store",
    "Tokenizer": "keel.data.tokenizer",
    "KeelError": "keel.errors",
    "Model": "keel.model",
    "Bert": "keel.systems.bert",
    "Cnn": "keel.systems.cnn",
    "Elmo": "keel.systems.elmo",
    "FastText": "keel.systems.fasttext",
    "Glove": "keel.systems.glove",
    "Gpt": "keel.systems.gpt",
    "Ngram": "keel.systems.ngram",
    "Nnlm": "keel.systems.nnlm",
    "Onehot": "keel.systems.onehot",
    "Rnn": "keel.systems.rnn",
    "Seq2seq": "keel.systems.seq2seq",
    "Transformer": "keel.systems.transformer",
    "Ulmfit": "keel.systems.ulmfit",
    "Word2vec": "keel.systems.word2vec",
    "Wordclass": "keel.systems.wordclass",
    "Train": "keel.training.plan",
}
"""The module of each public name, as the imports above say it."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `import keel` alone does not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'keel' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
