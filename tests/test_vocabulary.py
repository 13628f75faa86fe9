"""The project uses the field's vocabulary: no private terms in identifiers, help texts, messages or documentation.

`python tests/test_vocabulary.py [FOLDER or FILE ...]` prints the findings without pytest.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Regular expressions over prose (docstrings, comments, help texts, messages, Markdown): the term to use instead.
PROSE = {
    r"\bforet(?:ell|old)\w*": "predict",
    r"\buntaught\b": "zero-shot",
    r"\b(?:taught|teach(?:es|ing)?)\b": "fine-tune, train",
    r"\bgists?\b": "pooled output",
    r"\breckon\w*": "compute",
    r"\blikelie(?:st|r)\b": "most probable, top",
    r"\bchances\b": "probabilities",
    r"\b(?:sureness|surest)\b": "confidence, most confident",
    r"\bas (?:they|it) falls?\b": "streamed",
    r"\bpieces?\b": "tokens, subwords",
    r"(?<!question )(?<!quotation )(?<!exclamation )(?<!punctuation )(?<!order )\bmarks?\b": "special tokens, label",
    r"\bblanks\b|\bblank\b(?![- ](?:lines?|pages?))": "whitespace, empty",
    r"\bfram(?:ed|ing)\b": "input template",
    r"\bspell(?:s|ed|ing|ings)?\b": "characters, subword units",
    r"(?<!capital )(?<!case )(?<!accented )\bletters?\b(?!-spacing)": "characters",
    r"\b(?:doubts?|doubtful|remarks?|remarked)\b": "warning, note, message",
    r"\b(?:goes|going|gone|go|went) on\b": "resume, continue",
    r"\btak(?:e|en|es|ing) up again\b": "resume",
    r"\bkept apart\b|\bkeeps? apart\b|\bset apart\b": "validation, held-out",
    r"\btold\b|\bis said\b|\bare said\b|\bsaid so\b|\bwhat is said\b": "reported, shown (say who does it)",
    r"(?<!word )(?<!token )(?<!byte )(?<!character )\bby (?:token|word|byte|character)\b"
    r"(?! (?:count|ids?|vectors?|n-gram))": "per token",
    r"\b(?:races|raced)\b": "nondeterministic (Hogwild)",
    r"\bmeets?\b|\bmet\b": "sees, setup",
    r"\brewr(?:it|ote)\w*": "seq2seq; overwrite, replace (of files)",
    r"\bso many\b|\bso much of\b": "a number",
    r"(?<!soon )(?<!long )(?<!far )\bas (?:it|they) (?:is|are|stands?|was|were)\b(?! (?:in|for|on)\b)": "unchanged",
    r"\banew\b": "again, from scratch",
    r"\bmay stand\b|\bstands wherever\b": "is accepted",
    r"\b(?:is|are|was|were) asked\b": "say who asks for what",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bby heart\b": "in the vocabulary",
    r"\bways? round\b": "order",
    r"\bcomes? again\b": "is repeated, duplicate",
    r"\bthat comes? up\b": "that occurs",
    r"\b(?:thereof|whereof|therein|wherein|whilst|upon|lest|naught|nought|aught|hence|whence|thence|ere)\b": (
        "plain English"
    ),
    r"\b(?:words|tokens|negatives|samples|examples|batches) (?:that are |are )?drawn\b": "sampled",
    r"\bdrawn (?:words?|tokens?|from|by|at|for|with|ones)\b": "sampled",
    r"\brows of (?:a|the|each|one|this) batch\b|\b(?:padded|packed) rows\b|\bbatch(?:es)? of rows\b": (
        "sequences, examples"
    ),
    r"(?<!learning )(?<!peak )(?<!mask )(?<!masking )(?<!error )(?<!dropout )(?<!sampling )(?<!success )"
    r"(?<!sample )(?<!base )\brates?\b": "learning rate",
    r"\b(?:by|its|of|two|these|distinct) levels?\b|\blevels? (?:by|above|below)\b": "layer, parameter group",
}
# Words of identifiers (split at underscores and capitals).
IDENTIFIER_WORDS = {
    r"foret(?:ell|old)\w*": "predict",
    r"untaught": "zero_shot",
    r"taught|teach(?:es|ing)?": "finetuning, train",
    r"gists?": "pooled",
    r"reckon\w*": "compute",
    r"likelie(?:st|r)": "most_probable, top",
    r"chances": "probabilities, log_probs",
    r"sureness|surest": "confidence",
    r"pieces?": "tokens, subwords",
    r"marks?|marked": "special_tokens, label",
    r"blanks": "whitespace",
    r"framed|framing": "input_template, build_inputs",
    r"spell(?:s|ed|ing|ings|er)?": "characters, subword_units",
    r"letters?": "characters",
    r"doubts?|remarks?": "warning, note, message",
    r"told|tell|tells|telling": "reported, message, known",
    r"said|says": "message, reported",
    r"asked|asks|asking|unasked": "requested, given",
    r"heard?|hears": "on_event",
    r"meets?|met": "setup, seen",
    r"races": "nondeterministic",
    r"rewr(?:it|ote)\w*": "seq2seq; overwrite, replace (of files)",
    r"anew": "from_scratch",
    r"apart": "held_out, separate",
    r"settled?": "resolved",
    r"waves": "sinusoidal",
    r"places": "positions, locations",
    r"drawn|drew": "sampled",
    r"choosing": "multiple_choice",
    r"befores": "previous",
    r"crew|doors|lender|tide|homes": "the technical term",
}
# Whole names.
IDENTIFIERS = {
    r"how": "strategy, method",
    r"rate": "lr",
    r"draw": "rng, sample",
    r"writer": "model, decoder, generator",
    r"head_width": "head_dim",
    r"counts_once": "count_based",
}
# Names of fields.
FIELDS = {
    r"both": "bidirectional",
    r"expansion": "mlp_ratio",
    r"agreement": "r_drop",
    r"slowness": "tar",
    r"smoothing": "label_smoothing",
    r"levels": "layers, parameter_groups",
}
# Names of functions and methods: neither a bare everyday verb nor a participle.
FUNCTIONS = {
    r"made|given|taken|seen|kept|found|shown|left|built|learned|picked|ready|known|counted|wanted|heard|listed|named|"
    r"mixed|cut|turned|written|pick|put|give": "a verb with its object",
}

# (path or its beginning, regular expression of the matched word, the reason).
ALLOWED = [
    ("tests/test_vocabulary.py", r".*", "the table itself"),
    ("docs/glossary.md", r".*", "may name the terms that are not used"),
    ("CHANGELOG.md", r"rewr\w+", "names a task that was renamed"),
    ("benchmarks/real_weights.py", r"told|met", "the text that the figures were measured on"),
    ("src/keel/report", r"draw|drawn.*|marks?|letter", "pictures are drawn, charts have marks, CSS has letter-spacing"),
    ("tests/report", r".*drawn.*", "pictures are drawn"),
    ("docs/claims/128.md", r"mark", "a relation of Universal Dependencies"),
    ("tests/golden", r"waves", "the name of a recorded run"),
    ("src/keel/explain/projection.py", r"draw|drawn.*", "pictures are drawn"),
]

# Names that every package has.
SAME_FILE_NAME = {"__init__.py", "__main__.py"}


@dataclass(frozen=True)
class Finding:
    path: Path
    line: int
    word: str
    term: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.word!r}: write {self.term}"


def _compile(table: dict[str, str], whole: bool = False) -> tuple[re.Pattern[str], list[str]]:
    """One alternation of all patterns, whose n-th group belongs to the n-th term."""
    joined = "|".join(f"({'^' if whole else ''}(?:{pattern}){'$' if whole else ''})" for pattern in table)
    return re.compile(joined, re.IGNORECASE), list(table.values())


PROSE_PATTERN, PROSE_TERMS = _compile(PROSE)
WORD_PATTERN, WORD_TERMS = _compile(IDENTIFIER_WORDS, whole=True)
NAME_PATTERN, NAME_TERMS = _compile(IDENTIFIERS, whole=True)
FUNCTION_PATTERN, FUNCTION_TERMS = _compile(FUNCTIONS, whole=True)
FIELD_PATTERN, FIELD_TERMS = _compile(FIELDS, whole=True)


def _prose_findings(path: Path, line: int, text: str) -> Iterator[Finding]:
    for match in PROSE_PATTERN.finditer(text):
        start = line + text.count("\n", 0, match.start())
        yield Finding(path, start, match[0], PROSE_TERMS[(match.lastindex or 1) - 1])


def _name_findings(path: Path, line: int, name: str, kind: str = "") -> Iterator[Finding]:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    checks = [(WORD_PATTERN, WORD_TERMS, word) for word in words] + [(NAME_PATTERN, NAME_TERMS, name)]
    checks += [(FUNCTION_PATTERN, FUNCTION_TERMS, name)] if kind == "function" else []
    checks += [(FIELD_PATTERN, FIELD_TERMS, name)] if kind == "field" else []
    for pattern, terms, word in checks:
        if match := pattern.match(word):
            yield Finding(path, line, name, terms[(match.lastindex or 1) - 1])
            return


def _names(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """(line, name, kind) of everything that is defined."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name, "function"
        elif isinstance(node, ast.ClassDef):
            yield node.lineno, node.name, "class"
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield field.lineno, field.target.id, "field"
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg, "parameter"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id, "variable"
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr, "attribute"


def _docstring_nodes(tree: ast.AST) -> Iterator[ast.Constant]:
    """Docstrings, those under fields included."""
    for node in ast.walk(tree):
        for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement.value


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of all string constants; an f-string is one text with {} for its values."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def _python_findings(path: Path) -> Iterator[Finding]:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    yield from _name_findings(path, 1, path.stem)
    seen: set[tuple[str, str]] = set()
    for line, name, kind in _names(tree):
        if (name, kind) not in seen:
            seen.add((name, kind))
            yield from _name_findings(path, line, name, kind)
    docstrings = list(_docstring_nodes(tree))
    helps = [
        word.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg == "help"
    ]
    for node in (*docstrings, *helps):
        if isinstance(node, ast.Constant) and str(node.value).lower().startswith("of "):
            yield Finding(path, node.lineno, "Of ...", "the technical term first")
    if path.is_relative_to(ROOT / "tests"):  # test data may contain any words
        texts = [(node.lineno, node.value) for node in docstrings if isinstance(node.value, str)]
    else:
        texts = [(line, text) for line, text in _strings(tree) if " " in text.strip()]
    for line, text in texts:
        yield from _prose_findings(path, line, text)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _prose_findings(path, token.start[0], token.string)


def _file_findings(path: Path) -> Iterator[Finding]:
    if path.suffix == ".py":
        yield from _python_findings(path)
    elif path.suffix == ".toml":
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if text.lstrip().startswith("#"):
                yield from _prose_findings(path, line, text)
    else:
        yield from _prose_findings(path, 1, path.read_text(encoding="utf-8"))


def _allowed(finding: Finding) -> bool:
    path = finding.path.relative_to(ROOT).as_posix()
    return any(path.startswith(start) and re.fullmatch(word, finding.word, re.I) for start, word, _ in ALLOWED)


@cache
def find_terms(path: Path) -> tuple[Finding, ...]:
    return tuple(finding for finding in _file_findings(path) if not _allowed(finding))


def _scopes() -> dict[str, list[Path]]:
    """Every package of src, every folder of tests and of documentation, with its files."""
    files = [path for folder in ("src/keel", "tests", "benchmarks", "recipes") for path in (ROOT / folder).rglob("*.*")]
    files += [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    scopes: dict[str, list[Path]] = {}
    for path in sorted(files):
        if path.suffix not in (".py", ".toml", ".md") or "assets" in path.parts:
            continue
        parts = path.relative_to(ROOT).parts
        depth = 3 if parts[0] == "src" else 1 if parts[0] in ("benchmarks", "recipes") else 2
        name = "/".join(parts[: min(depth, len(parts) - 1)]) or "README"
        scopes.setdefault(name, []).append(path)
    return scopes


SCOPES = _scopes()


@pytest.mark.parametrize("scope", SCOPES)
def test_terms_of_the_field(scope: str) -> None:
    findings = [finding for path in SCOPES[scope] for finding in find_terms(path)]
    assert not findings, f"{len(findings)} findings\n" + "\n".join(map(str, findings))


def test_file_names_are_unique() -> None:
    names = Counter(path.name for path in (ROOT / "src").rglob("*.py"))
    assert {name for name, count in names.items() if count > 1} <= SAME_FILE_NAME


def test_class_names_are_unique() -> None:
    names: Counter[str] = Counter()
    for path in (ROOT / "src").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names.update(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    assert not {name for name, count in names.items() if count > 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The model foretells the next word.", ["foretells"]),
        ("word by word, perplexity by word", ["by word"]),
        ("a blank line, a blank", ["blank"]),
        ("the learning rate, the rate", ["rate"]),
        ("Rerun the command to resume.", []),
    ],
)
def test_prose_patterns(text: str, words: list[str]) -> None:
    assert [finding.word for finding in _prose_findings(ROOT, 1, text)] == words


@pytest.mark.parametrize(
    ("name", "found"), [("foretells", True), ("word_pieces", True), ("GistPooling", True), ("pooled", False)]
)
def test_identifier_patterns(name: str, found: bool) -> None:
    assert bool(list(_name_findings(ROOT, 1, name))) == found


if __name__ == "__main__":
    chosen = [Path(argument).resolve() for argument in sys.argv[1:]] or [ROOT]
    paths = [path for files in SCOPES.values() for path in files if any(path.is_relative_to(c) for c in chosen)]
    results = [finding for path in paths for finding in find_terms(path)]
    sys.stdout.write("".join(f"{finding}\n" for finding in results) + f"{len(results)} findings\n")
