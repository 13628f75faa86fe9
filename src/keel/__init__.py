"""Keel: pre-train on your own text, fine-tune on your own labels, compare the generations side by side, look inside."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keel.checks import check
    from keel.classifier import Classifier
    from keel.errors import KeelError
    from keel.language import generate, perplexity
    from keel.model import Model
    from keel.prompting import ask, summarize
    from keel.rewriting import translate
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
    from keel.text.corpus import Corpus
    from keel.text.tokenizer import Tokenizer
    from keel.text.tokens import Tokens
    from keel.train.plan import Train
    from keel.verbs import convert, embed, evaluate, fill, finetune, layers, predict, pretrain
    from keel.words import analogy, nearest, odd, senses, similarity, word_map

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
    "Bert": "keel.systems.bert",
    "Classifier": "keel.classifier",
    "Cnn": "keel.systems.cnn",
    "Corpus": "keel.text.corpus",
    "Elmo": "keel.systems.elmo",
    "FastText": "keel.systems.fasttext",
    "Glove": "keel.systems.glove",
    "Gpt": "keel.systems.gpt",
    "KeelError": "keel.errors",
    "Model": "keel.model",
    "Ngram": "keel.systems.ngram",
    "Nnlm": "keel.systems.nnlm",
    "Onehot": "keel.systems.onehot",
    "Rnn": "keel.systems.rnn",
    "Seq2seq": "keel.systems.seq2seq",
    "Tokenizer": "keel.text.tokenizer",
    "Tokens": "keel.text.tokens",
    "Train": "keel.train.plan",
    "Transformer": "keel.systems.transformer",
    "Ulmfit": "keel.systems.ulmfit",
    "Word2vec": "keel.systems.word2vec",
    "Wordclass": "keel.systems.wordclass",
    "analogy": "keel.words",
    "ask": "keel.prompting",
    "check": "keel.checks",
    "generate": "keel.language",
    "nearest": "keel.words",
    "odd": "keel.words",
    "perplexity": "keel.language",
    "senses": "keel.words",
    "similarity": "keel.words",
    "translate": "keel.rewriting",
    "summarize": "keel.prompting",
    "word_map": "keel.words",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `import keel` alone does not load torch."""
    if name not in __all__:
        raise AttributeError(f"module 'keel' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "keel.verbs")), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
