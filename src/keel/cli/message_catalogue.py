"""The sentences of the source as a gettext catalogue: `python -m keel.cli.message_catalogue` updates zh.po.

A sentence is a string or f-string of several words that is no docstring; a field's text and a command's docstring are
sentences too, as they stand in --help. Single words count where they are arguments of SENTENCE_CALLS. New sentences are
added without a translation, those that have gone are dropped.
"""

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import count
from pathlib import Path

from keel.localization import CATALOGUES, VALUE, WORD, read_catalogue

SOURCE = Path(__file__).parents[1]
LEFT_OUT = ("kernels", "claims", "assets", "report/page_style.py", "cli/reference.py", "cli/message_catalogue.py",
            "api/keywords.py", "systems/family_tree.py", "model_card.py", "localization.py", "demo/docstrings.py",
            "data/chinese_words.py", "data/language_detection.py")  # fmt: skip
"""Files and folders without sentences for users, or whose sentences stay English: claims are pages in docs/claims,
model cards are read by other programs."""
INCLUDED = ("claims/__init__.py", "claims/claim.py", "claims/html_pages.py")
"""Files of LEFT_OUT that have titles and results which are shown elsewhere too."""
SENTENCE_CALLS = {"translate", "translated", "gettext_noop", "pluralize", "section", "facts", "Page", "Finding",
                  "phrases"}  # fmt: skip
"""Functions and methods whose arguments are sentences, single words too."""
NO_SENTENCE = re.compile(
    r"</|/>|^\s*[.#]?[\w-]+ *\{(?!\d+[#?]?\})|^[#.][\w-]+ |^https?:|^[A-Z_]+=|^[\w.-]+:[\w.-]+$|^--[\w.]+ [A-Z]+$"
)
"""Markup, rules of CSS, addresses."""
ANY_WORD = re.compile(r"[A-Za-z][a-z']*")
NUMBER = re.compile(r"[,+.\d]*[,dfg%]")
FIELD = re.compile(r"\{[a-z_]*(?::[^{}]+)?\}")
FUNCTION_WORDS = {
    "a",
    "an",
    "and",
    "at",
    "by",
    "for",
    "from",
    "in",
    "is",
    "it",
    "not",
    "of",
    "on",
    "or",
    "the",
    "to",
    "with",
}
WORDS = (
    *(
        "accuracy",
        "macro_f1",
        "macro F1",
        "micro F1",
        "matthews",
        "pearson",
        "spearman",
        "exact match",
        "perplexity",
        "loss",
    ),
    *(
        "parameters",
        "vocabulary",
        "tokens",
        "sentences",
        "documents",
        "words",
        "word",
        "text",
        "texts",
        "labels",
        "label",
    ),
    *(
        "folder",
        "file",
        "holds",
        "format",
        "system",
        "shape",
        "lacks",
        "scalar mix",
        "training data",
        "parent",
        "hardware",
    ),
    *(
        "steps",
        "step",
        "command",
        "not default",
        "unknown",
        "size",
        "width",
        "norms",
        "first words",
        "notes",
        "run",
        "recipe",
    ),
    *("devices", "cores", "threads", "cache", "bundled models", "a model", "word vectors", "an unfinished run"),
    *("log-odds", "low", "high", "deletion", "insertion", "occlusion", "none", "no GPU", "causal", "feed-forward"),
    *(
        "attention",
        "integers",
        "examples",
        "mean",
        "layer",
        "head",
        "train",
        "score",
        "seed",
        "seeds",
        "epochs",
        "minutes",
        "time",
    ),
    *("or", "and", "characters", "class", "question", "answer", "passage", "length", "lr", "batch"),
    *(
        "heads",
        "embeddings",
        "subwords",
        "lowercased",
        "cased",
        "entity F1",
        "answer F1",
        "answerable F1",
        "binary F1",
        "precision",
        "recall",
        "unanswerable accuracy",
    ),
    *("contents", "padding", "encoding", "median", "95% below", "longest", "documents/s", "characters in each"),
    *("line", "field", "commas", "tabs", "spaces", "semicolons", "target tokens", "ngrams", "pairs", "updates"),
    *("query", "key", "value", "logits", "probabilities", "context", "read-out", "convolution", "input", "output"),
    *("encoder", "decoder", "hidden", "queries", "keys", "source", "masks", "candidates", "directions", "features"),
    *("filters", "layers", "sequences", "cross-attention", "self-attention", "{1} at {2#}", "{1#} cores of {2}"),
    *(
        "lines",
        "tensor",
        "formula",
        "meaning",
        "add",
        "System",
        "Reason",
        "Pair",
        "points",
        "better:worse",
        "detectable",
        "verdict",
        "majority",
        "center",
    ),
    *("English", "German", "French", "Spanish", "Russian", "Chinese", "Japanese", "Korean"),
    *("No such file or directory", "Not a directory", "Is a directory", "Permission denied", "File exists"),
    *("Read-only file system", "File name too long", "No space left on device", "Connection refused"),
    *("{1} on {2#}", "{1#} to {2#}", "{1} left", "step {1#}/{2#}", "step {1#} of {2#}", "{1} in {2#} s", ", not {1}"),
    *(
        "[Errno {1#}] {2}",
        "[Errno {1#}] {2}: {3}",
        "{1#} passes of {2#}",
        "{1#} pass of {2#}",
        "{1#} of it is not {2}",
    ),
    *("{1#} or more and {2#} or less", "the following arguments are required: {1}", "argument {1}: {2}"),
    *("expected one argument", "expected at least one argument", "invalid choice: {1} (choose from {2})"),
    *(
        "95% interval",
        "pre-train",
        "fine-tune",
        "memory",
        "texts/s",
        "by label",
        "by slice",
        "by entity type",
        "by length",
    ),
    *(
        "{1#} x {2#}",
        "{1} ({2#}) by {3}",
        "{1#} in {2#}",
        "{1#} MB in {2}",
        "log-odds of {1} {2#}",
        "{1#} to the first token",
        "{1#} to [SEP]",
        "{1#} each",
    ),
    *("not allowed with argument {1}", "ignored explicit argument {1}", "invalid int value: {1}"),
)
"""Words that stand alone: facts, heads of tables, axes, values of sentences; what the operating system answers; and
templates of scores and progress, which have no word of their own that would tell them from other text."""


def sentences() -> dict[str, str]:
    """All sentences of the source, as templates, with a comment on their first place and values."""
    found: dict[str, str] = dict.fromkeys(WORDS, "a word that stands alone")
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name in INCLUDED or not name.startswith(LEFT_OUT):
            for text, values in file_sentences(ast.parse(path.read_text(encoding="utf-8"))):
                found.setdefault(text, f"{name}{values and f' ({values})'}")
    return found


def file_sentences(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The sentences of a file, each with its values as the source names them."""
    docstrings = {*_docstrings(tree)}
    inside: set[ast.AST] = set()
    code = {each for node in ast.walk(tree) if _is_repr(node) for each in ast.walk(node)}
    nodes = [node for node in ast.walk(tree) if node not in code]
    for node in nodes:
        match node:
            case ast.ClassDef():
                yield from ((" ".join(text.split()), "") for text in _field_texts(node))
            case ast.FunctionDef(decorator_list=[ast.Call(func=ast.Name(id="command")), *_]):
                yield from ((" ".join(part.split()), "") for part in (ast.get_docstring(node) or "").split("\n\n"))
            case ast.Call() if _name(node.func) in SENTENCE_CALLS:
                yield from _arguments(node)
            case ast.Call(func=ast.Name(id="map"), args=[ast.Name(id=name), *_]) if name in SENTENCE_CALLS:
                yield from _arguments(node)
            case ast.JoinedStr():
                inside |= {*node.values}
                for value in node.values:
                    yield from _words_inside(value)
    for node in nodes:
        if node not in inside and node not in docstrings and (found := _template(node)) and is_sentence(found[0]):
            yield found


def _is_repr(node: ast.AST) -> bool:
    """Whether a node is a `__repr__`, which looks like code and stays English."""
    return isinstance(node, ast.FunctionDef) and node.name == "__repr__"


def is_sentence(text: str) -> bool:
    """Whether a string or template is something to read, not a name, a pattern or markup."""
    if VALUE.search(text):
        enough = bool(content_words(text))  # "layer {1}" is one; "{1} of {2}" could be a user's text
    else:
        enough = len(ANY_WORD.findall(text)) >= 2 and bool(WORD.search(text))  # "a number"
    return enough and " " in text and not NO_SENTENCE.search(text)


def content_words(text: str) -> list[str]:
    """The words of a template beside its values; without those that any text has, if it has values."""
    words = WORD.findall(VALUE.sub(" ", text))
    return [word for word in words if word not in FUNCTION_WORDS] if VALUE.search(text) else words


def _template(node: ast.AST) -> tuple[str, str] | None:
    match node:
        case ast.Constant(value=str(text)):
            numbers = count(1)  # a text for str.format has fields with names
            return FIELD.sub(lambda _: f"{{{next(numbers)}}}", text.strip()), ""
        case ast.JoinedStr(values=parts):
            values: list[str] = []
            text = ""
            for part in parts:
                if isinstance(part, ast.FormattedValue):
                    values.append(ast.unparse(part.value))
                    text += f"{{{len(values)}{_value_kind(part)}}}"
                elif isinstance(part, ast.Constant):
                    text += str(part.value)
            return text.strip(), ", ".join(f"{number} {value[:60]}" for number, value in enumerate(values, 1))
    return None


def _value_kind(value: ast.FormattedValue) -> str:
    """What is known of a value: # starts with a number, ? is one of Keel's own words."""
    match value:
        case ast.FormattedValue(value=ast.IfExp()):
            return "?"
        case ast.FormattedValue(value=ast.Call(func=ast.Name(id="gettext_noop"))):
            return "?"
        case ast.FormattedValue(value=ast.Call(func=ast.Name(id="len" | "pluralize"))):
            return "#"
        case ast.FormattedValue(format_spec=ast.JoinedStr(values=[ast.Constant(value=str(spec)), *_])):
            return "#" if NUMBER.fullmatch(spec) else ""
    return ""


def _arguments(call: ast.Call) -> Iterator[tuple[str, str]]:
    """Words that are arguments of a function for sentences; of `pluralize`, with the count."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if _name(call.func) == "pluralize":
        nouns = [each.value for each in given[1:] if isinstance(each, ast.Constant)]
        if nouns:
            yield f"{{1#}} {nouns[0]}", "a count"
            yield f"{{1#}} {nouns[1] if nouns[1:] else f'{nouns[0]}s'}", "a count"
        return
    for argument in given:
        parts = {part for node in ast.walk(argument) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(argument):
            if node in parts:
                continue
            found = _template(node)
            if found and content_words(found[0]):
                yield found


def _words_inside(value: ast.AST) -> Iterator[tuple[str, str]]:
    """Words that an f-string chooses between: {'file' if n == 1 else 'files'}."""
    for node in ast.walk(value):
        if isinstance(node, ast.IfExp):
            for choice in (node.body, node.orelse):
                found = _template(choice)
                if found and content_words(found[0]):
                    yield found


def _docstrings(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement.value


def _field_texts(node: ast.ClassDef) -> Iterator[str]:
    """Texts of the fields of settings, which are help texts of flags."""
    if not any(_name(base) in _settings_classes() for base in node.bases):
        return
    for field, below in zip(node.body, node.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text))):
                yield text


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@cache
def _settings_classes() -> frozenset[str]:
    """Names of `Validated` and all classes below it."""
    names = {"Validated"}
    pairs: list[tuple[str, set[str]]] = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                pairs.append((node.name, {_name(base) for base in node.bases}))
    while new := {name for name, bases in pairs if bases & names} - names:
        names |= new
    return frozenset(names)


def render(comments: dict[str, str], translations: dict[str, str]) -> str:
    """The catalogue as a .po file, in the order of the source."""
    lines = ['msgid ""', 'msgstr ""', '"Language: zh\\n"', '"Content-Type: text/plain; charset=UTF-8\\n"', ""]
    for english, comment in comments.items():
        lines += [f"#. {' '.join(comment.split())}", f"msgid {_quoted(english)}"]
        lines += [f"msgstr {_quoted(translations.get(english, ''))}", ""]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def untranslated(translations: dict[str, str], texts: Iterable[str]) -> list[str]:
    """Sentences without a translation, or whose translation has other values."""
    return [
        text for text in texts if not translations.get(text) or value_numbers(text) != value_numbers(translations[text])
    ]


def value_numbers(text: str) -> set[str]:
    """The numbers of the values of a template."""
    return {found[1] for found in VALUE.finditer(text)}


def main() -> None:
    path = CATALOGUES / "zh.po"
    known = read_catalogue(path) if path.exists() else {}
    comments = sentences()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(comments, known), encoding="utf-8")
    missing = untranslated(known, comments)
    sys.stdout.write(f"{path.name}: {len(comments)} sentences, {len(missing)} without a translation\n")


if __name__ == "__main__":
    main()
