"""The published systems, one file each, by year; a saved name becomes a class here and nowhere else."""

from keel.systems.bert import Bert as Bert
from keel.systems.cnn import Cnn as Cnn
from keel.systems.elmo import Elmo as Elmo
from keel.systems.fasttext import FastText as FastText
from keel.systems.glove import Glove as Glove
from keel.systems.gpt import Gpt as Gpt
from keel.systems.ngram import Ngram as Ngram
from keel.systems.nnlm import Nnlm as Nnlm
from keel.systems.onehot import Onehot as Onehot
from keel.systems.rnn import Rnn as Rnn
from keel.systems.seq2seq import Seq2seq as Seq2seq
from keel.systems.system import System
from keel.systems.transformer import Transformer as Transformer
from keel.systems.ulmfit import Ulmfit as Ulmfit
from keel.systems.word2vec import Word2vec as Word2vec
from keel.systems.wordclass import Wordclass as Wordclass

SYSTEMS: dict[str, type[System]] = {
    "ngram": Ngram,
    "onehot": Onehot,
    "rnn": Rnn,
    "wordclass": Wordclass,
    "nnlm": Nnlm,
    "word2vec": Word2vec,
    "glove": Glove,
    "cnn": Cnn,
    "seq2seq": Seq2seq,
    "fasttext": FastText,
    "transformer": Transformer,
    "elmo": Elmo,
    "ulmfit": Ulmfit,
    "gpt": Gpt,
    "bert": Bert,
}
YEARS = {
    "ngram": 1948,
    "onehot": 1972,
    "rnn": 1990,
    "wordclass": 1992,
    "nnlm": 2003,
    "word2vec": 2013,
    "glove": 2014,
    "cnn": 2014,
    "seq2seq": 2014,
    "fasttext": 2016,
    "transformer": 2017,
    "elmo": 2018,
    "ulmfit": 2018,
    "gpt": 2018,
    "bert": 2018,
}
LINEAGE = (
    ("seq2seq", "rnn"),
    ("fasttext", "word2vec"),
    ("elmo", "rnn"),
    ("ulmfit", "rnn"),
    ("gpt", "transformer"),
    ("bert", "transformer"),
)
"""Systems and their ancestors: the file of the first imports the file of the second, and no other system's."""
