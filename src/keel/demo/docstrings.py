"""Real English that every Python environment carries: the docstrings of Keel's own dependencies, as prose."""

import ast
import hashlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from keel.data.sentence_splitting import split_sentences
from keel.errors import KeelError

PACKAGES = (
    "huggingface_hub",
    "jinja2",
    "mpmath",
    "networkx",
    "numba",
    "numpy",
    "pygments",
    "setuptools",
    "sympy",
    "torch",
)
"""What Keel needs and what that needs in turn: all of it is installed wherever Keel is."""

LITERAL = re.compile(r"``(.+?)``|:[\w:]+:`~?(.+?)`|`([^`]+?)`_*|\*\*(.+?)\*\*", re.DOTALL)
CODE = re.compile(r"^\s|^>>>|^\.\. |^[-*+|#:@$\d]|[-=~^]{4}|\\[a-z]+\b", re.MULTILINE)
SENTENCE = re.compile(r"[A-Z][^{}\[\]=<>|\\_@#]*[.!?]")
NAMES = re.compile("|".join([*PACKAGES, "hugging ?face"]), re.IGNORECASE)
SKIPPED = {"tests", "testing", "_vendor"}


@dataclass(frozen=True)
class Docstring:
    """The sentences of one docstring, and the package that it is from."""

    package: str
    sentences: tuple[str, ...]

    @property
    def number(self) -> int:
        """Drawn by the text alone."""
        return number_of(" ".join(self.sentences))

    @property
    def held_out(self) -> bool:
        """Whether it is among the third that is kept for tests: no model learns from it, with labels or without."""
        return self.number % 3 == 0


def number_of(text: str) -> int:
    """A number drawn by the text alone, so that every order and every split is the same everywhere."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def gather(folder: Path, say: Callable[[str], None]) -> list[Docstring]:
    """Every docstring of two sentences or more, once, in a fixed order; read from `folder` if it was done before."""
    path = folder / "docstrings.jsonl"
    if not path.exists():
        found = {docstring.sentences: docstring for package in PACKAGES for docstring in _of_package(package, say)}
        ordered = sorted(found.values(), key=lambda docstring: docstring.number)
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text("".join(json.dumps(asdict(docstring)) + "\n" for docstring in ordered), encoding="utf-8")
        part.replace(path)
    with open(path, encoding="utf-8") as lines:
        rows = map(json.loads, lines)
        return [Docstring(row["package"], tuple(row["sentences"])) for row in rows]


def questions(docstrings: Iterable[Docstring]) -> list[tuple[str, str]]:
    """(sentence, package) in a fixed order: the sentences that stand in one docstring alone and name no package."""
    pairs = [(sentence, docstring.package) for docstring in docstrings for sentence in docstring.sentences]
    seen = Counter(sentence for sentence, _ in pairs)
    fit = [pair for pair in pairs if seen[pair[0]] == 1 and not NAMES.search(pair[0])]
    return sorted(fit, key=lambda pair: number_of(pair[0]))


def balanced(pairs: Iterable[tuple[str, str]], each: int, skip: int = 0) -> list[tuple[str, str]]:
    """`each` pairs of every label, after the first `skip` of each."""
    seen: Counter[str] = Counter()
    chosen = []
    for text, label in pairs:
        seen[label] += 1
        if skip < seen[label] <= skip + each:
            chosen.append((text, label))
    if short := [label for label, count in seen.items() if count < skip + each]:
        raise KeelError(f"too few sentences of {', '.join(short)}: is the package installed whole?")
    return chosen


def to_prose(docstring: str) -> tuple[str, ...]:
    """The sentences of a docstring, without its code, tables, lists of parameters and markup."""
    paragraphs = re.split(r"\n\s*\n", docstring)
    prose = (" ".join(LITERAL.sub(_content, text).split()) for text in paragraphs if not CODE.search(text))
    sentences = (sentence for text in prose for sentence in split_sentences(text))
    return tuple(text for text in sentences if SENTENCE.fullmatch(text) and 5 <= len(text.split()) <= 60)


def _content(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)


def _of_package(package: str, say: Callable[[str], None]) -> Iterator[Docstring]:
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        raise KeelError(f"{package} is not installed, though Keel needs it: pip install keel-nlp") from None
    files = sorted(Path(str(file.locate())) for file in installed.files or () if file.suffix == ".py")
    count = words = 0
    for text in (text for file in files if SKIPPED.isdisjoint(file.parts) for text in _docstrings(file)):
        sentences = to_prose(text)
        if len(sentences) >= 2:
            count, words = count + 1, words + sum(len(sentence.split()) for sentence in sentences)
            yield Docstring(package, sentences)
    say(f"{package} {installed.version}: {count:,} docstrings, {words:,} words")


def _docstrings(file: Path) -> Iterator[str]:
    """What a file says about its modules, classes and functions; it is parsed, never imported."""
    try:
        source = file.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the syntax of others
            nodes: list[ast.AST] = [ast.parse(source)] if '"""' in source else []
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
            nodes += node.body
