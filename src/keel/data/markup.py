"""JSON and XML documents among text files: a reader of plain text would learn from their markup."""

import json
import re
from pathlib import Path
from typing import Any

from keel.data.text_encodings import detect_encoding
from keel.data.text_files import first_bytes, open_text
from keel.errors import KeelError

SAMPLE = 1 << 16
"""Bytes at the beginning of a file by which it is recognised."""
STRING = re.compile(r'"(?:[^"\\]|\\.)*(?:"|$)', re.DOTALL)
JSON_SYNTAX = re.compile(r"[\s\[\]{}:,\d.eE+\-truefalsn]*")
"""What remains of JSON without its strings."""
ARRAY_START = re.compile(r"\[\s*\{")
XML_SUFFIXES = {".xml", ".html", ".htm", ".xhtml", ".sgm", ".sgml"}
XML_START = re.compile(r"\s*<(\?xml|!doctype|html)\b", re.IGNORECASE)
TAG_LINE = re.compile(r"\s*</?[A-Za-z][\w:.-]*(\s[^<>]*)?/?>")
KINDS: dict[str, tuple[tuple[str, ...], str]] = {
    "SQuAD-like JSON": (
        ('"context"', '"qas"'),
        "no task reads answer spans; to pre-train on its paragraphs, write them to a text file, one per line",
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
    """What a JSON or XML document is, by its beginning; empty for other text."""
    start = first_bytes(path, SAMPLE)
    try:
        text = start.decode(detect_encoding(start) if encoding == "auto" else encoding, "ignore")
    except LookupError:  # reported when the whole file is read
        return ""
    text = text.lstrip("\ufeff \t\r\n")
    if _is_json(text):
        kind = "JSON lines" if _is_object(text.partition("\n")[0]) and "\n{" in text else "JSON"
    elif _is_xml(text, path):
        kind = "XML"
    else:
        return ""
    kind = next((name for name, (parts, _) in KINDS.items() if kind in name and all(it in text for it in parts)), kind)
    return "JSON array of objects" if kind == "JSON" and ARRAY_START.match(text) else kind


def refuse_markup(path: Path, name: str, encoding: str = "auto") -> None:
    """Refuse a JSON or XML document where plain text is expected."""
    if not (kind := markup_kind(path, encoding)):
        return
    what = f"{name} is {kind}, not plain text, and its markup would be read as words"
    if kind == "JSON lines":
        raise KeelError(f"{what}: rename it to .jsonl")
    remedy = "write its text to a .txt file" if kind == "XML" else JSON_REMEDY
    raise KeelError(f"{what}: {KINDS[kind][1] if kind in KINDS else remedy}")


def read_json_document(path: Path, name: str, encoding: str = "auto") -> Any:
    """The value in a file that is one JSON document."""
    text = open_text(path, encoding).document()
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise KeelError(f"{name}:{error.lineno}: this is not JSON ({error.msg}): correct it") from None
    except RecursionError:
        raise KeelError(f"{name} is nested too deeply: is it damaged?") from None


def _is_json(text: str) -> bool:
    if not text.startswith(("{", "[")) or '"' not in text:
        return False
    return JSON_SYNTAX.fullmatch(STRING.sub("", text)) is not None


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_xml(text: str, path: Path) -> bool:
    if XML_START.match(text) or (text.startswith("<") and XML_SUFFIXES & {suffix.lower() for suffix in path.suffixes}):
        return True
    lines = [line for line in text.split("\n")[:200] if line.strip()]
    return text.startswith("<") and 2 * sum(TAG_LINE.match(line) is not None for line in lines) > len(lines)
