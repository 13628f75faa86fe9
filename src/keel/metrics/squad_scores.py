"""How much of an answer is right, counted as SQuAD's own script counts."""

import re
import string
from collections import Counter
from collections.abc import Sequence

from keel.data.sentence_splitting import CJK

ARTICLES = re.compile(r"\b(a|an|the)\b")
CHINESE = re.compile(f"([{CJK}])")
MARKS = str.maketrans("", "", string.punctuation + "，。、；：？！“”‘’（）《》…—")


def normal_words(answer: str) -> list[str]:
    """The words of an answer that count: lower case, no articles, no punctuation; Chinese characters are words."""
    return CHINESE.sub(r" \1 ", ARTICLES.sub(" ", answer.lower().translate(MARKS))).split()


def exact_match(said: str, right: Sequence[str]) -> float:
    """Whether what was said is one of the right answers: 0 or 1."""
    return float(any(normal_words(said) == normal_words(each) for each in right))


def overlap_f1(said: str, right: Sequence[str]) -> float:
    """F1 of the words said, by the right answer that is nearest; of no words, whether none are right."""
    return max((_f1(normal_words(said), normal_words(each)) for each in right), default=0.0)


def _f1(said: list[str], right: list[str]) -> float:
    if not said or not right:
        return float(said == right)
    shared = (Counter(said) & Counter(right)).total()
    return 2 * shared / (len(said) + len(right))
