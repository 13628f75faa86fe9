"""The lineage, one file each, in the order of history; a saved name becomes a class here and nowhere else."""

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
from keel.systems.system import System
from keel.systems.transformer import Transformer
from keel.systems.ulmfit import Ulmfit
from keel.systems.word2vec import Word2vec
from keel.systems.wordclass import Wordclass

SYSTEMS: dict[str, type[System]] = {
    "onehot": Onehot,
    "wordclass": Wordclass,
    "ngram": Ngram,
    "nnlm": Nnlm,
    "word2vec": Word2vec,
    "glove": Glove,
    "fasttext": FastText,
    "cnn": Cnn,
    "rnn": Rnn,
    "ulmfit": Ulmfit,
    "elmo": Elmo,
    "transformer": Transformer,
    "seq2seq": Seq2seq,
    "gpt": Gpt,
    "bert": Bert,
}
