"""Exact match and F1 of answers, as SQuAD's evaluation script computes them."""

import re
import string
from collections import Counter
from collections.abc import Sequence

from keel.data.sentence_splitting import CJK

ARTICLES = re.compile(r"\b(a|an|the)\b")
CHINESE = re.compile(f"([{CJK}])")
PUNCTUATION = str.maketrans("", "", string.punctuation + "，。、；：？！“”‘’（）《》…—")


def normal_words(answer: str) -> list[str]:
    """The normalised words of an answer: lower case, no articles, no punctuation; Chinese characters are words."""
    return CHINESE.sub(r" \1 ", ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION))).split()


def exact_match(predicted: str, gold: Sequence[str]) -> float:
    """1 if the prediction is one of the gold answers, else 0."""
    return float(any(normal_words(predicted) == normal_words(each) for each in gold))


def overlap_f1(predicted: str, gold: Sequence[str]) -> float:
    """Maximum over the gold answers of the F1 of shared words."""
    return max((_f1(normal_words(predicted), normal_words(each)) for each in gold), default=0.0)


def _f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    shared = (Counter(predicted) & Counter(gold)).total()
    return 2 * shared / (len(predicted) + len(gold))
