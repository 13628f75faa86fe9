"""Character encodings: detection, the likely encoding of invalid text, lone surrogates."""

import codecs
import re

BOMS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16",
        b"\xfe\xff": "utf-16"}  # fmt: skip
SURROGATES = re.compile("[\ud800-\udfff]")
GB_PAIR = re.compile(rb"[\xa1-\xf7][\xa1-\xfe]")
GB_FREQUENT = {0xA1, 0xA3, *range(0xB0, 0xD8)}
"""First bytes of Chinese punctuation and of GB2312's 3,755 frequent characters."""

SCRIPTS = {
    "cp1251": ("[а-яё]", 0.7),
    "koi8-r": ("[а-яё]", 0.7),
    "shift_jis": ("[ぁ-んァ-ン]", 0.3),
    "euc_jp": ("[ぁ-んァ-ン]", 0.3),
    "big5": ("[的一是不在有我人這個中大了]", 0.05),
}
"""Encodings of other scripts: their frequent characters, and the least share of these in text."""
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
    shares = {encoding: _script_share(content, encoding) for encoding in SCRIPTS}
    likely = max(shares, key=lambda encoding: shares[encoding] / SCRIPTS[encoding][1])
    return likely if shares[likely] >= SCRIPTS[likely][1] else ""


def _script_share(content: bytes, encoding: str) -> float:
    """Share of the frequent characters of a script in what is not ASCII; 0 where much cannot be decoded."""
    others = re.sub("[\x00-\x7f]", "", content[:LIKELY_SAMPLE].decode(encoding, "replace"))
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
    """Whether bytes are GB18030: in Cyrillic and other encodings too a high byte follows another, but not these."""
    pairs = GB_PAIR.findall(content)
    frequent, low = sum(pair[0] in GB_FREQUENT for pair in pairs), sum(pair[1] < 0xC0 for pair in pairs)
    covered = len(pairs) * 4 >= _high_bytes(content)
    return bool(pairs) and covered and frequent * 10 >= len(pairs) * 7 and low * 8 >= len(pairs)
