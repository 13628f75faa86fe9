"""The published systems, one file each, by year; a saved name becomes a class here and nowhere else."""

from keel.systems.bert import Bert as Bert
from keel.systems.cnn import Cnn as Cnn
from keel.systems.electra import Electra as Electra
from keel.systems.elmo import Elmo as Elmo
from keel.systems.ernie import Ernie as Ernie
from keel.systems.fasttext import FastText as FastText
from keel.systems.glove import Glove as Glove
from keel.systems.gpt import Gpt as Gpt
from keel.systems.modernbert import ModernBert as ModernBert
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
    kind.name: kind
    for kind in (
        Ngram,
        Onehot,
        Rnn,
        Wordclass,
        Nnlm,
        Word2vec,
        Glove,
        Cnn,
        Seq2seq,
        FastText,
        Transformer,
        Elmo,
        Ulmfit,
        Gpt,
        Bert,
        Ernie,
        Electra,
        ModernBert,
    )
}
LINEAGE = (
    ("seq2seq", "rnn"),
    ("fasttext", "word2vec"),
    ("elmo", "rnn"),
    ("ulmfit", "rnn"),
    ("gpt", "transformer"),
    ("bert", "transformer"),
    ("ernie", "bert"),
    ("electra", "bert"),
    ("modernbert", "bert"),
)
"""Systems and their ancestors: the file of the first imports the file of the second, and no other system's."""
