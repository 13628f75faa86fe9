"""English text from every Python environment: the docstrings of Keel's dependencies."""

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
    *("huggingface_hub", "jinja2", "mpmath", "networkx", "numba", "numpy", "pygments", "setuptools", "sympy", "torch"),
)
"""Direct and indirect dependencies, installed wherever Keel is."""

LITERAL = re.compile(r"``(.+?)``|:[\w:]+:`~?(.+?)`|`([^`]+?)`_*|\*\*(.+?)\*\*", re.DOTALL)
CODE = re.compile(r"^\s|^>>>|^\.\. |^[-*+|#:@$\d]|[-=~^]{4}|\\[a-z]+\b", re.MULTILINE)
SENTENCE = re.compile(r"[A-Z][^{}\[\]=<>|\\_@#]*[.!?]")
NAMES = re.compile("|".join([*PACKAGES, "hugging ?face"]), re.IGNORECASE)
SKIPPED = {"tests", "testing", "_vendor"}


@dataclass(frozen=True)
class Docstring:
    """Sentences of one docstring and its package."""

    package: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        """One sentence per line."""
        return "\n".join(self.sentences)

    @property
    def number(self) -> int:
        """Hash of the text."""
        return text_hash(" ".join(self.sentences))

    @property
    def held_out(self) -> bool:
        """Whether it is in the held-out third, which no model is trained on."""
        return self.number % 3 == 0


def text_hash(text: str) -> int:
    """Hash of a text, so that every order and split is the same everywhere."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def collect_docstrings(folder: Path, say: Callable[[str], None]) -> list[Docstring]:
    """All distinct docstrings of two sentences or more in a fixed order; cached in `folder`."""
    path = folder / "docstrings.jsonl"
    if not path.exists():
        found = {
            docstring.sentences: docstring for package in PACKAGES for docstring in _package_docstrings(package, say)
        }
        ordered = sorted(found.values(), key=lambda docstring: docstring.number)
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text("".join(json.dumps(asdict(docstring)) + "\n" for docstring in ordered), encoding="utf-8")
        part.replace(path)
    with open(path, encoding="utf-8") as lines:
        rows = map(json.loads, lines)
        return [Docstring(row["package"], tuple(row["sentences"])) for row in rows]


def training_texts(docstrings: Iterable[Docstring]) -> list[str]:
    """Texts of the docstrings that are not held out."""
    return [docstring.text for docstring in docstrings if not docstring.held_out]


def labelled_sentences(docstrings: Iterable[Docstring], held_out: bool | None = None) -> list[tuple[str, str]]:
    """(sentence, package) in a fixed order: sentences that occur once in all docstrings and name no package; with
    `held_out`, of the docstrings that are held out or of the others."""
    seen, chosen = Counter[str](), list[tuple[str, str]]()
    for docstring in docstrings:
        seen.update(docstring.sentences)
        if held_out in (None, docstring.held_out):
            chosen += ((sentence, docstring.package) for sentence in docstring.sentences)
    fit = [pair for pair in chosen if seen[pair[0]] == 1 and not NAMES.search(pair[0])]
    return sorted(fit, key=lambda pair: text_hash(pair[0]))


def shifted_sentences(docstrings: Iterable[Docstring], *, held_out: bool) -> list[tuple[str, str]]:
    """(sentence, "original" or "swapped") in a fixed order: in half of the sentences two adjacent words are exchanged
    (bigram shift, Conneau et al., "What you can cram into a single vector", 2018). A sentence that is in a held-out and
    in another docstring is held out."""
    given = dict[str, bool]()
    for docstring in docstrings:
        for sentence in docstring.sentences:
            given[sentence] = given.get(sentence, False) or docstring.held_out
    pairs = []
    for sentence in sorted(given, key=text_hash):
        words = sentence.split()
        if given[sentence] != held_out or not 6 <= len(words) <= 25:
            continue
        swap, position = divmod(text_hash(f"shift {sentence}"), 2)[::-1]
        place = 1 + position % (len(words) - 3)  # neither the first nor the last word, which their form gives away
        if not swap:
            pairs.append((sentence, "original"))
        elif words[place].lower() != words[place + 1].lower():
            words[place : place + 2] = reversed(words[place : place + 2])
            pairs.append((" ".join(words), "swapped"))
    return pairs


def balanced(pairs: Iterable[tuple[str, str]], each: int, skip: int = 0) -> list[tuple[str, str]]:
    """`each` pairs per label, after the first `skip`."""
    seen: Counter[str] = Counter()
    chosen = []
    for text, label in pairs:
        seen[label] += 1
        if skip < seen[label] <= skip + each:
            chosen.append((text, label))
    if short := [label for label, count in seen.items() if count < skip + each]:
        raise KeelError(f"too few sentences of {', '.join(short)}: reinstall the package")
    return chosen


def to_prose(docstring: str) -> tuple[str, ...]:
    """Sentences of a docstring without code, tables, parameter lists and markup."""
    paragraphs = re.split(r"\n\s*\n", docstring)
    prose = (" ".join(LITERAL.sub(_content, text).split()) for text in paragraphs if not CODE.search(text))
    sentences = (sentence for text in prose for sentence in split_sentences(text))
    return tuple(text for text in sentences if SENTENCE.fullmatch(text) and 5 <= len(text.split()) <= 60)


def _content(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)


def _package_docstrings(package: str, say: Callable[[str], None]) -> Iterator[Docstring]:
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        raise KeelError(f"{package}, a dependency of Keel, is not installed: pip install keel-nlp") from None
    files = sorted(Path(str(file.locate())) for file in installed.files or () if file.suffix == ".py")
    count = words = 0
    for text in (text for file in files if SKIPPED.isdisjoint(file.parts) for text in _docstrings(file)):
        sentences = to_prose(text)
        if len(sentences) >= 2:
            count, words = count + 1, words + sum(len(sentence.split()) for sentence in sentences)
            yield Docstring(package, sentences)
    say(f"{package} {installed.version}: {count:,} docstrings, {words:,} words")


def _docstrings(file: Path) -> Iterator[str]:
    """Docstrings of a file's module, classes and functions, parsed without importing it."""
    try:
        source = file.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # syntax warnings of other packages
            nodes: list[ast.AST] = [ast.parse(source)] if '"""' in source else []
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
            nodes += node.body
