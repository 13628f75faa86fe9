"""Exact match and F1 of span answers, equal to the official scripts of SQuAD 1.1, SQuAD 2.0 and CMRC 2018.

English (Rajpurkar et al., 2016 and 2018): lower case, without ASCII punctuation, articles and extra whitespace; F1 of
the shared words. Chinese (Cui et al., 2019): a Chinese character is a token, text between them is split by the rules of
the Penn Treebank; F1 of the longest common substring of tokens. `benchmarks/answer_scores.py` compares the outputs.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from keel.data.language_detection import is_unspaced

AnswerLanguage = Literal["english", "chinese"]

ARTICLES = re.compile(r"\b(a|an|the)\b")
ENGLISH_PUNCTUATION = str.maketrans("", "", string.punctuation)

CHINESE_CHARACTER = re.compile("([\u4e00-\u9fa5])")
CHINESE_PUNCTUATION = str.maketrans("", "", r"-:_*^/\~`+=" "，。：？！“”；’《》·、「」（）－～『』")
"""The list of CMRC's script, which keeps "…", "‘" and most ASCII punctuation."""

TREEBANK_RULES = [
    (re.compile(rule), replacement)
    for rule, replacement in (
        (r"[«‘„]", r" \g<0> "),
        (r'^"', " `` "),
        (r"([ (\[{<])(\"|'')", r"\1 `` "),
        (r"(?i)'(?!re|ve|ll|m|t|s|d|n)(\w)\b", r"' \1"),
        (r"([^.])(\.)([\])}>\"'» ]*)\s*$", r"\1 \2 \3 "),  # a full stop belongs to its word, except at the end
        (r",(\D|$)", r" , \1"),
        (r"\.{2,}|[;@#$%&?!]", r" \g<0> "),
        (r"([^'])' ", r"\1 ' "),
        (r"[][(){}<>»]", r" \g<0> "),
        (r"''|\"", " '' "),
        (r"\s+|$", " "),
        (r"([^' ])('[smd]?) ", r"\1 \2 "),
        (r"([^' ])('ll|'re|'ve|n't) ", r"\1 \2 "),
        (
            r"(?i)\b(can(?=not)|d(?='ye)|gim(?=me)|gon(?=na)|got(?=ta)|lem(?=me)|more(?='n))(not|'ye|me|na|ta|'n)\b",
            r" \1 \2 ",
        ),
        (r"(?i)\b(wan)(na)(?=\s)", r" \1 \2 "),
        (r"(?i)(?:^| )('t)(is)\b", r" \1 \2 "),
        (r"(?i)(?:^| )('t)(was)\b", r" \1 \2 "),
    )
]


@dataclass(frozen=True)
class AnswerScorer:
    """EM and F1 of a predicted answer, the maximum over its gold answers; without any, only "" is right.

    English follows SQuAD 2.0: gold answers that normalise to nothing ("the") do not count, and if none is left, the
    question is unanswerable. SQuAD 1.1's script gives equal scores if all gold answers have words; else it also
    compares answers without words, with F1 0 even where EM is 1. For Chinese, CMRC's script does the same.
    """

    language: AnswerLanguage

    def exact_match(self, predicted: str, gold: Sequence[str]) -> float:
        if self.language == "chinese":
            return float(_chinese_text(predicted) in map(_chinese_text, gold or [""]))
        return float(self.tokens(predicted) in self._english_gold(gold))

    def f1(self, predicted: str, gold: Sequence[str]) -> float:
        if not gold:
            return self.exact_match(predicted, gold)
        tokens = self.tokens(predicted)
        if self.language == "chinese":
            return max(_f1(tokens, each, _longest_common_substring(tokens, each)) for each in map(self.tokens, gold))
        return max(
            _f1(tokens, each, (Counter(tokens) & Counter(each)).total()) if tokens and each else float(tokens == each)
            for each in self._english_gold(gold)
        )

    def tokens(self, answer: str) -> list[str]:
        """Normalised tokens, which F1 compares."""
        if self.language == "chinese":
            parts = CHINESE_CHARACTER.split(_chinese_text(answer))
            return [token for part in parts for token in treebank_tokens(part)]
        return ARTICLES.sub(" ", answer.lower().translate(ENGLISH_PUNCTUATION)).split()

    def _english_gold(self, gold: Sequence[str]) -> list[list[str]]:
        return [tokens for each in gold if (tokens := self.tokens(each))] or [[]]


def answer_language(texts: Iterable[str]) -> AnswerLanguage:
    """Chinese (or Japanese) if a fifth of the visible characters of the first 1,000 texts are, else English."""
    return "chinese" if is_unspaced("\n".join(islice(texts, 1000))) else "english"


def best_null_threshold(
    null_odds: np.ndarray, f1_if_answered: np.ndarray, answerable: np.ndarray
) -> tuple[float, float]:
    """Threshold with the highest mean score if the answer is "" where null_odds > threshold, and this score (0 to 1).

    Equal to `find_best_thresh` of SQuAD 2.0 for distinct odds above 0. Questions with equal odds are answered together
    (there, the score may be one that no threshold gives); if no answer is best, the threshold is below all odds.
    """
    order = np.argsort(null_odds, kind="stable")
    odds, gain = null_odds[order], (f1_if_answered - ~answerable)[order]
    sums = np.cumsum([np.sum(~answerable), *gain])  # score if the first 0, 1, 2 ... questions are answered
    possible = np.append(True, np.append(odds[1:] != odds[:-1], True))
    best = int(np.argmax(np.where(possible, sums, -np.inf)))
    threshold = odds[best - 1] if best else min(0.0, np.nextafter(odds[0], -np.inf))
    return float(threshold), float(sums[best] / len(odds))


def treebank_tokens(text: str) -> list[str]:
    """Tokens of lower-case English by the rules of the Penn Treebank, as `word_tokenize` of nltk 3.6 to 3.9.2 has them.

    Rules for CHINESE_PUNCTUATION are left out, and so is nltk's sentence splitter (punkt), which separates full stops
    inside a text: no gold answer of CMRC's dev set has one. nltk 3.9.3 and later also separate dashes.
    """
    for rule, replacement in TREEBANK_RULES:
        text = rule.sub(replacement, text)
    return text.split()


def _chinese_text(answer: str) -> str:
    return answer.lower().strip().translate(CHINESE_PUNCTUATION)


def _longest_common_substring(one: Sequence[str], other: Sequence[str]) -> int:
    longest, lengths = 0, [0] * (len(other) + 1)
    for token in one:
        lengths = [0, *(before + 1 if token == each else 0 for before, each in zip(lengths, other, strict=False))]
        longest = max(longest, *lengths)
    return longest


def _f1(predicted: Sequence[str], gold: Sequence[str], shared: int) -> float:
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(gold)
    return 2 * precision * recall / (precision + recall)
