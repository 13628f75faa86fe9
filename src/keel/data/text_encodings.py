"""Character encodings: detection, the likely encoding of invalid text, lone surrogates, code points."""

import codecs
import re
from collections.abc import Iterable

import numpy as np

BOMS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16",
        b"\xfe\xff": "utf-16", b"\x84\x31\x95\x33": "gb18030"}  # fmt: skip
SUPERSETS = {"gb2312": "gb18030", "gbk": "gb18030", "big5": "cp950"}
"""Encodings that are read as a superset, as in browsers: text declared as GB2312 usually has characters of GBK, and
Big5 of Windows has 裏 and 恒, which Python's lacks."""
EVIDENT = 10
"""Multi-byte characters of valid UTF-8 from which a text is in no other encoding."""
SURROGATES = re.compile("[\ud800-\udfff]")
UTF8_LEAD = re.compile(rb"[\xc2-\xf4]")
GB_PAIR = re.compile(rb"[\xa1-\xf7][\xa1-\xfe]")
GB_FREQUENT = {0xA1, 0xA3, *range(0xB0, 0xD8)}
"""First bytes of Chinese punctuation and of GB2312's 3,755 frequent characters."""

SIMPLIFIED = (
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事成方多经么去法学如都同现当没"
    "动面起看定天分还进好小部其些主样理心她本前开但因只从想实日者意无力它与长把机十民第公此已工使情明性知全三又关点正业外将两高间由问很最重并物手应"
)
TRADITIONAL = (
    "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自之年過發後作裡用道行所然家種事成方多經麼去法學如都同現當沒"
    "動面起看定天分還進好小部其些主樣理心她本前開但因只從想實日者意無力它與長把機十民第公此已工使情明性知全三又關點正業外將兩高間由問很最重並物手應"
)
HANGUL = (
    "이다는에의하고을가지로사기도어대를은한자시리아인해서나일그정"
    "들부과전만있라게여제수니장상면보주원구스성적국비우소조동으"
)
"""The most frequent characters of Chinese in both scripts, and syllables of Korean."""
SCRIPTS = {
    "gb18030": (f"[{SIMPLIFIED}，。]", 0.2),
    "big5": (f"[{TRADITIONAL}，。]", 0.2),
    "cp949": (f"[{HANGUL}]", 0.25),
    "shift_jis": ("[ぁ-んァ-ンー]", 0.3),
    "euc_jp": ("[ぁ-んァ-ンー]", 0.3),
    "cp1251": ("[а-яё]", 0.7),
    "koi8-r": ("[а-яё]", 0.7),
}
"""Encodings other than UTF-8: frequent characters of their scripts, and the least share of these in text."""
VARIANTS = {
    "gb18030": ("gb18030", "gbk", "gb2312"),
    "big5": ("big5", "cp950", "big5hkscs"),
    "cp949": ("cp949", "euc_kr"),
    "shift_jis": ("shift_jis", "cp932", "shift_jis_2004", "shift_jisx0213"),
    "euc_jp": ("euc_jp", "euc_jis_2004", "euc_jisx0213"),
}
"""Encodings that share pairs of bytes, each with its variants by Python's names."""
EAST_ASIAN = tuple(VARIANTS)
LIKELY_SAMPLE = 1 << 16


def replace_surrogates(text: str) -> str:
    """The text without lone surrogates, which no encoding can represent: pairs are joined, others become U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def replace_all_surrogates(texts: list[str]) -> list[str]:
    """The texts without lone surrogates; the same list if there are none, which is fast to check."""
    try:
        "".join(texts).encode("utf-8")
    except UnicodeEncodeError:
        return list(map(replace_surrogates, texts))
    return texts


def detect_encoding(sample: bytes) -> str:
    """Detect the encoding: by the byte order mark, else UTF-8, else GB18030 if it looks like Chinese."""
    for bom, encoding in BOMS.items():
        if sample.startswith(bom):
            return encoding
    return "gb18030" if not _mostly_utf8(sample) and _looks_chinese(sample) else "utf-8"


def likely_encoding(content: bytes) -> str:
    """The likely encoding of text that is not UTF-8; empty if there is no evidence for one."""
    if content.count(0) * 4 > len(content):
        return "utf-16-le" if content[1::2].count(0) > content[::2].count(0) else "utf-16-be"
    if _mostly_utf8(content):
        return ""
    if _looks_chinese(content):
        return "gb18030"
    # In Western text accented letters and typographic quotes seldom follow each other.
    alone = len(re.findall(rb"(?<![\x80-\xff])[\x80-\xff](?![\x80-\xff])", content))
    if alone * 2 > _high_bytes(content):
        return "cp1252"
    likely, ratio = _best_script(content, SCRIPTS)
    return likely if ratio >= 1 else ""


def declared_encoding(name: str) -> str:
    """The encoding in which text declared as `name` is read; LookupError for an unknown name."""
    return SUPERSETS.get(codecs.lookup(name).name, name)


def evident_encoding(sample: bytes, declared: str) -> str:
    """The encoding of a text if it is certainly not the declared one, by its byte order mark or as valid UTF-8; empty
    otherwise."""
    evident = next((encoding for bom, encoding in BOMS.items() if sample.startswith(bom)), "")
    if not evident and len(UTF8_LEAD.findall(sample)) >= EVIDENT and _is_utf8(sample):
        evident = "utf-8"
    return "" if codecs.lookup(declared).name.replace("_", "-").startswith(evident) else evident


def better_east_asian(content: bytes, declared: str) -> str:
    """An East Asian encoding whose frequent characters a text has, in contrast to those of the declared one; empty if
    there is none."""
    own = next((each for each in EAST_ASIAN if _same_bytes(each, declared)), "")
    if not own:
        return ""
    likely, ratio = _best_script(content, EAST_ASIAN)
    return likely if ratio >= 1 and 2 * _script_share(content, own) / SCRIPTS[own][1] < ratio else ""


def _same_bytes(encoding: str, declared: str) -> bool:
    """Whether a declared encoding is this one or a variant of it."""
    return codecs.lookup(declared).name in VARIANTS[encoding]


def _is_utf8(sample: bytes) -> bool:
    """Whether a sample is valid UTF-8; it may end inside a character."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return False
    return True


def _best_script(content: bytes, encodings: Iterable[str]) -> tuple[str, float]:
    """The encoding in which most characters are frequent ones, and their share relative to the least; the first of
    equals."""
    shares = {encoding: _script_share(content, encoding) / SCRIPTS[encoding][1] for encoding in encodings}
    likely = max(shares, key=shares.__getitem__)
    return likely, shares[likely]


def _script_share(content: bytes, encoding: str) -> float:
    """Share of the frequent characters of a script in what is not ASCII; 0 where much cannot be decoded."""
    others = re.sub("[\x00-\x7f]", "", content[:LIKELY_SAMPLE].decode(SUPERSETS.get(encoding, encoding), "replace"))
    if not others or others.count("\ufffd") * 50 > len(others):
        return 0.0
    return len(re.findall(SCRIPTS[encoding][0], others)) / len(others)


def is_wide(encoding: str) -> bool:
    """Whether a character has two bytes or more, so that text may contain NUL bytes."""
    return codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))


def _mostly_utf8(content: bytes) -> bool:
    """Whether at most a tenth of what is not ASCII is invalid UTF-8."""
    faults = content.decode("utf-8", "replace").count("\ufffd") - content.count(b"\xef\xbf\xbd")
    return faults * 10 <= _high_bytes(content)


def _high_bytes(content: bytes) -> int:
    return len(content) - len(content.translate(None, bytes(range(128, 256))))


def _looks_chinese(content: bytes) -> bool:
    """Whether bytes are GB18030: in Cyrillic and other encodings too a high byte follows another, but not these. Those
    of EUC-KR and some of EUC-JP and Big5 are the same: as GB18030 they decode to rare characters."""
    pairs = GB_PAIR.findall(content)
    frequent, low = sum(pair[0] in GB_FREQUENT for pair in pairs), sum(pair[1] < 0xC0 for pair in pairs)
    covered = len(pairs) * 4 >= _high_bytes(content)
    usual = bool(pairs) and covered and frequent * 10 >= len(pairs) * 7 and low * 8 >= len(pairs)
    return usual and _best_script(content, EAST_ASIAN)[0] == "gb18030"


def code_points(text: str) -> np.ndarray:
    """[characters] code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
