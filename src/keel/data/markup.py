"""JSON and XML documents among text files: a reader of plain text would learn from their markup."""

import json
import re
from pathlib import Path
from typing import Any

from keel.data.text_encodings import detect_encoding
from keel.data.text_files import file_suffix, first_bytes, open_text
from keel.errors import KeelError
from keel.events import OnEvent, note

SAMPLE = 1 << 16
"""Bytes at the beginning of a file by which it is recognised."""
STRING = re.compile(r'"(?:[^"\\]|\\.)*(?:"|$)', re.DOTALL)
JSON_SYNTAX = re.compile(r"[\s\[\]{}:,\d.eE+\-truefalsnNIity]*")
"""What remains of JSON without its strings, with the NaN and Infinity that Python writes."""
OBJECT_START = re.compile(r'(\[\s*)?\{\s*"')
"""A beginning that is JSON, whatever follows: a damaged document is no plain text either."""
ARRAY_START = re.compile(r"\[\s*\{")
XML_SUFFIXES = {".xml", ".html", ".htm", ".xhtml", ".sgm", ".sgml"}
XML_START = re.compile(r"\s*<(\?xml|!doctype|html)\b", re.IGNORECASE)
TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z][\w:.-]*)(\s[^<>]*?)?(?P<empty>/?)>")
LEAST_TAG_SHARE = 50
"""A share of one line in this number that are only tags shows markup; of the first line, one is enough."""
NOT_JSON = "not JSON"
SQUAD = "SQuAD-like JSON"
KINDS: dict[str, tuple[tuple[str, ...], str]] = {
    SQUAD: (
        ('"qas"',),
        "use --task answer; to pre-train on its paragraphs, write them to a text file, one per line",
    ),
    "DREAM JSON": (('"question"', '"choice"', '"answer"'), "use --task choose"),
    "Winograd schemas in XML": (
        ("<schema>", "<answers>"),
        'write each as {"context": ..., "choices": [...], "label": 0} in a .jsonl file, for --task choose',
    ),
}
"""Published documents: what occurs in them, and what to do."""
JSON_REMEDY = "write its texts to a .txt file, or its records to a .jsonl file, one per line, and name --text-column"


def markup_kind(path: Path, encoding: str = "auto") -> str:
    """What a JSON or XML document is, by its beginning and suffix; empty for other text."""
    text, complete = _beginning(path, encoding)
    text = text.lstrip("\ufeff \t\r\n")
    if _is_json(text):
        kind = "JSON lines" if _is_object(text.partition("\n")[0]) and "\n{" in text else "JSON"
    elif file_suffix(path) == ".json" and text:
        return "JSON" if text.startswith(("{", "[")) else NOT_JSON
    elif _is_xml(text, path, complete=complete):
        kind = "XML"
    else:
        return ""
    kind = next((name for name, (parts, _) in KINDS.items() if kind in name and all(it in text for it in parts)), kind)
    return "JSON array of objects" if kind == "JSON" and ARRAY_START.match(text) else kind


def refuse_markup(path: Path, name: str, encoding: str = "auto") -> None:
    """Refuse a JSON or XML document where plain text is expected."""
    if not (kind := markup_kind(path, encoding)):
        return
    if kind == NOT_JSON:
        raise KeelError(f"{name} is not JSON, but named so: correct it, or rename it to .txt if it is plain text")
    what = f"{name} is {kind}, not plain text, and its markup would be read as words"
    if kind == "JSON lines":
        raise KeelError(f"{what}: rename it to .jsonl")
    remedy = "write its text to a .txt file" if kind == "XML" else JSON_REMEDY
    raise KeelError(f"{what}: {KINDS[kind][1] if kind in KINDS else remedy}")


def note_tag_lines(path: Path, name: str, encoding: str, on_event: OnEvent) -> None:
    """Report lines that are only tags, such as <doc id="12"> of WikiExtractor, at the beginning of plain text."""
    text = _beginning(path, encoding)[0]
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    tags = [(number, line) for number, line in lines if (tag := TAG.fullmatch(line)) and (tag[3] or tag["close"])]
    if not tags or (tags[0] != lines[0] and len(tags) * LEAST_TAG_SHARE < len(lines)):
        return
    number, first = tags[0]
    what = f"{len(tags):,} of the first {len(lines):,} lines are only tags ({first[:40]}), which are read as words"
    note(on_event, f"{name}:{number}: {what}: remove these lines if they are markup")


def read_json_document(path: Path, name: str, encoding: str = "auto") -> Any:
    """The value in a file that is one JSON document."""
    text = open_text(path, encoding).document()
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise KeelError(f"{name}:{error.lineno}: this is not JSON ({error.msg}): correct it") from None
    except RecursionError:
        raise KeelError(f"{name} is nested too deeply: is it damaged?") from None


def _beginning(path: Path, encoding: str) -> tuple[str, bool]:
    """The beginning of a file, and whether this is all; empty if the encoding is unknown, which is reported later."""
    start = first_bytes(path, SAMPLE)
    try:
        text = start.decode(detect_encoding(start) if encoding == "auto" else encoding, "ignore")
    except LookupError:
        return "", True
    return text, len(start) < SAMPLE


def _is_json(text: str) -> bool:
    if not text.startswith(("{", "[")) or '"' not in text:
        return False
    return bool(OBJECT_START.match(text)) or JSON_SYNTAX.fullmatch(STRING.sub("", text)) is not None


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_xml(text: str, path: Path, *, complete: bool) -> bool:
    if XML_START.match(text) or (text.startswith("<") and file_suffix(path) in XML_SUFFIXES):
        return True
    lines = [line for line in text.split("\n")[:200] if line.strip()]
    mostly_tags = 2 * sum(TAG.match(line.lstrip()) is not None for line in lines) > len(lines)
    return text.startswith("<") and mostly_tags and _is_one_element(text, complete)


def _is_one_element(text: str, complete: bool) -> bool:
    """Whether the first element spans the text and contains others; in a corpus, <s> or <user> only starts a line."""
    stack: list[str] = []
    opened = closed = 0
    for tag in TAG.finditer(text):
        if not tag["close"]:
            opened += 1
            if tag["empty"]:
                closed += 1
            else:
                stack.append(tag["name"])
        elif tag["name"] in stack:
            closed += 1
            while stack.pop() != tag["name"]:
                pass
            if not stack:
                return opened > 1 and not text[tag.end() :].strip()
    return not complete and 2 * closed > opened
