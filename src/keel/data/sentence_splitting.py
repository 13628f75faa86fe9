"""Sentence splitting, for English, Chinese and languages with their punctuation."""

import re
from collections.abc import Callable, Sequence
from typing import Literal

# One pattern for both languages, also mixed. It begins with a character class, which the regex engine finds fast, and
# rejects a following lower-case letter itself.
END = re.compile(
    r"""[.!?…。！？｡\n] (?<![.!?…][.!?…]) (?: (?<=\n) \s*+
      | (?<=[。！？｡]) [。！？｡!?…]*+ [”’」』）】》〉\])"']*+ (?![，、；：,;]) \s*+
      | (?<=…) …++ [。！？!?]*+ [”’」』）】》〉]*+ (?=[\u3000-\u9fff\uff00-\uffef“‘]) (?![，、；：])
      | (?<=[!?]) [!?]*+ [”’」』）】》〉]*+ (?=[\u3400-\u9fff“‘「『《])
      | [.!?…]*+ ["'”’»)\]]*+ (?:\[\d{1,3}\])*+ \s++ (?=["'“‘«(\[]*+ [^\sa-zß-öø-ÿа-яё,;:–—-])
    )""",
    re.VERBOSE,
)
BEFORE_CLOSING = re.compile(r" +([.,;:!?%)\]}…’”]|n't\b|(?<=\w )'|'(?:s|S|re|ve|ll|d|m)\b)")
"""Whitespace before punctuation and before the parts of contractions."""
CONTRACTION = re.compile(r"(?<=\w)' +(s|t|re|ve|ll|d|m)\b")
"""The rest of one, where a tokenizer separates the apostrophe."""
AFTER_OPENING = re.compile(r"([(\[{“$]) +")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEVER_LAST = _words(
    "mr mrs ms messrs dr prof rev hon st mt ft gen col lt capt maj sgt cmdr adm sen rep gov pres supt insp "
    "dist asst assoc univ dept vs viz cf e.g i.e al ed eds trans approx fr sra br mme mlle "
    "mon tue tues wed thu thur thurs fri jan feb apr jun jul aug sept"
)
"""Abbreviations before a name: their full stop ends no sentence."""

BEFORE_NUMBERS = _words("no nos p pp vol vols fig figs ch sec art eq v c ca op oct nov dec mar")
"""Abbreviations only where a number follows."""

SELDOM_LAST = _words("inc ltd co corp jr sr bros etc a.m p.m ph.d b.c a.d")
"""Abbreviations that may end a sentence, as initials and "U.S." may: if a word follows that often begins one."""

STARTERS = _words(
    "The A An This That These Those It He She They We You I In On At As By For From With When While After Before If "
    "But And Or So Yet However There Here His Her Their Its Our My What Who Where Why How Since Although Though Some "
    "Many Most All Another Other According Both Each Not No One Two During Because"
)

WORD = re.compile(r"[\"'“‘«(\[]*(\w+)")
CJK = "\u3400-\u4dbf\u4e00-\u9fff"
CHINESE = re.compile(f"[{CJK}]")
VOCABULARY_SAMPLE = 20_000
"""Words of a vocabulary by which its language is detected."""
LONG_WORD = 1000
NO_WORD = re.compile(rf"(?<![^\s\u3000-\u9fff])[^\s\u3000-\u9fff]{{{LONG_WORD},}}")
"""Character runs that are data rather than words."""


def split_sentences(text: str) -> list[str]:
    """Split English, Chinese or mixed text into sentences, stripped; a line break always ends one."""
    sentences = []
    start = 0
    for match in END.finditer(text):
        stop, end = match.span()
        if text[stop] == "." and text[stop + 1] in " \t\xa0" and _abbreviates(text, start, stop, end):
            continue
        sentence = text[start:end].strip()
        if sentence:
            sentences.append(sentence)
        start = end
    rest = text[start:].strip()
    if rest:
        sentences.append(rest)
    return sentences


Sentences = Literal["split", "lines", "none"]
"""Sentence splitting: by punctuation, by lines, or none (text keeps its whitespace)."""
SPLITTERS: dict[Sentences, Callable[[str], list[str]]] = {
    "split": split_sentences,
    "lines": lambda text: [stripped for line in text.split("\n") if (stripped := line.strip())],
    "none": lambda text: [text] if text else [],
}


def _abbreviates(text: str, start: int, stop: int, end: int) -> bool:
    """Whether the full stop belongs to an abbreviation rather than to the sentence."""
    start = max(start, stop - 12)
    word = text[max(start, text.rfind(" ", start, stop) + 1) : stop].lstrip("\"'“‘([«")
    if len(word) > 6:
        return False
    small = word.lower()
    if small in NEVER_LAST:
        return True
    if small in BEFORE_NUMBERS and text[end].isdecimal():
        return True
    if small in SELDOM_LAST or (len(word) == 1 and word.isupper()) or (len(word) > 2 and word[1::2].strip(".") == ""):
        following = WORD.match(text, end)
        return following is not None and following[1] not in STARTERS
    return False


def vocabulary_language(words: Sequence[str]) -> Literal["en", "zh"]:
    """Chinese if more than a fifth of the words contain Chinese characters, else English."""
    sample = words[:VOCABULARY_SAMPLE]
    return "zh" if sum(bool(CHINESE.search(word)) for word in sample) * 5 > len(sample) else "en"


def detokenize(text: str) -> str:
    """Join words as in running text: "don't go (now)." for "do n't go ( now ) ."; further words do not change it."""
    return AFTER_OPENING.sub(r"\1", CONTRACTION.sub(r"'\1", BEFORE_CLOSING.sub(r"\1", text)))
