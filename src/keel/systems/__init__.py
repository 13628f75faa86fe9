"""The lineage, one file each, in the order of history; a saved name becomes a class here and nowhere else."""

from keel.systems.base import System
from keel.systems.bert import Bert
from keel.systems.fasttext import FastText
from keel.systems.word2vec import Word2vec

SYSTEMS: dict[str, type[System]] = {"word2vec": Word2vec, "fasttext": FastText, "bert": Bert}
