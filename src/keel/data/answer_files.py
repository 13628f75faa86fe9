"""Readers of extractive question answering: SQuAD 1.1 and 2.0, CMRC 2018, MRQA and other SQuAD-like files, tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keel.data.answer_spans import ABSENT, GoldAnswers
from keel.data.examples import Example, Examples
from keel.data.label_kinds import SpanLabel
from keel.data.markup import SQUAD, markup_kind, read_json_document
from keel.data.memory_sources import Frame, is_null, is_records, plain_source, source_items
from keel.data.row_errors import collects_row_errors, row_error
from keel.data.table_sources import load_table, named_file, refuse_two_files
from keel.data.tables import DEFAULT_COLUMNS, Columns
from keel.data.text_files import file_suffix
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note, pluralize

# Usual names of fields, in the order in which they are tried.
PASSAGES = ("context", "passage", "paragraph", "context_text", "document", "text")
QUESTIONS = ("question", "query", "query_text")
ANSWERS = ("answers", "answer", "detected_answers")
STARTS = ("answer_start", "start", "answer_starts")
IDS = ("id", "qid", "query_id", "question_id")
TITLES = ("title", "id", "context_id")
MAX_LISTED = 10
"""Locations that a note lists; `keel check` lists up to MAX_CHECKED."""
MAX_CHECKED = 1000
EXPECTED = '{"context": ..., "question": ..., "answers": [{"text": ..., "answer_start": 0}]}'
NO_QUESTIONS = 'there is no list of questions, "qas": correct it'


def read_answers(source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
    """Read a SQuAD-like file, a table or jsonl, a DataFrame, or a list of ((passage, question), answers).

    The text of an example is the question, its second text the passage. The questions of one article are a group.
    """
    if isinstance(source, Examples):
        return source
    refuse_two_files(source)
    reading = _Reading()
    name = "the list"
    source = plain_source(source)
    if isinstance(source, str | Path):
        with named_file(source) as (path, name):
            kind = markup_kind(path, columns.encoding)
            squad = kind == SQUAD or (kind == "JSON" and file_suffix(path) == ".json")  # without articles, or cut short
            document = read_json_document(path, name, columns.encoding) if squad else None
            examples = _from_squad(document, name, reading) if squad else _from_table(path, columns, on_event, reading)
            found = [*examples]
    elif isinstance(source, Frame | dict) or is_records(source):
        found = [*_from_table(source, columns, on_event, reading)]
    else:
        found = [*_from_items(source_items(source), reading)]
    if not found:
        raise KeelError(f"{name} has no questions: give a SQuAD-like file, or lines such as {EXPECTED}")
    reading.report(name, on_event)
    # Tables have an empty cell for a question without answer, and for one without label.
    labelled = any(isinstance(example.label, GoldAnswers) and example.label.texts for example in found)
    labelled = labelled or reading.has_unanswerable
    return Examples.of(found, SpanLabel() if labelled else None, name)


def make_question(passage: Any, question: Any, location: str) -> Example:
    """An unlabelled question about a passage."""
    return _Reading().example(passage, question, None, None, location)


@dataclass
class _Reading:
    """What is collected while a file is read."""

    moved: list[str] = field(default_factory=list)
    """Where answers are that do not match their offset, and were found elsewhere in the passage."""
    absent: list[str] = field(default_factory=list)
    """The same of answers that do not occur in their passage."""
    has_unanswerable: bool = False
    """Whether some question is marked as unanswerable."""

    def example(
        self,
        passage: Any,
        question: Any,
        answers: Any,
        starts: Any,
        location: str,
        *,
        id: str = "",
        group: str = "",
        impossible: bool = False,
    ) -> Example:
        """A question about a passage, with its answers in any of the usual forms."""
        # Published files have a few empty questions; the checks of labels count them.
        for what, text, may_be_empty in (("passage", passage, False), ("question", question, True)):
            if not isinstance(text, str) or not (may_be_empty or text.strip()):
                fault = "is empty" if text is None or isinstance(text, str) else f"is {text!r:.60}"
                raise KeelError(f"{location}: the {what} {fault}: fill it in, as in {EXPECTED}")
        self.has_unanswerable |= impossible
        label = None
        if impossible:
            label = GoldAnswers()
        elif answers is not None:
            texts, given = _answer_lists(answers, starts, location)
            label = GoldAnswers.located(passage, texts, given)
            pairs = [*zip(given, label.starts, strict=True)]
            if any(found == ABSENT for _, found in pairs):
                self.absent.append(location)
            elif any(start is not None and start != found for start, found in pairs):
                self.moved.append(location)
        return Example(question, passage, label, location, id=id, group=group or passage)

    def report(self, name: str, on_event: OnEvent) -> None:
        """Notes on answers of the source `name` that do not match their offsets."""
        most = MAX_CHECKED if collects_row_errors() else MAX_LISTED
        for locations, forms in ((self.moved, MOVED), (self.absent, MISSING)):
            if locations:
                others = [_short_location(each, name) for each in locations[1:most]]
                others += ["..."] * (len(locations) > most)
                more = f", first here (also {', '.join(others)})" if others else ""
                note(on_event, f"{locations[0]}: {pluralize(len(locations), *forms)}{more}")


def _short_location(location: str, name: str) -> str:
    """A location without the name of its source, which another one in the same sentence has."""
    return location.removeprefix(f"{name} ").removeprefix("question ").removesuffix(" of the list")


USED = "the nearest occurrence in the passage is used"
MOVED = f"answer is not at its answer_start and {USED}", f"answers are not at their answer_start and {USED}"
UNUSED = "counts in scores and is not used in training", "count in scores and are not used in training"
MISSING = (
    f"answer does not occur in its passage: it {UNUSED[0]}",
    f"answers do not occur in their passages: they {UNUSED[1]}",
)


def _answer_lists(answers: Any, starts: Any, location: str) -> tuple[list[Any], list[int | None]]:
    """Texts and given starts of answers: a text, several, {"text": ..., "answer_start": ...} or a list of these.

    `starts` is a column of offsets beside that of answers, a number or several.
    """
    texts: list[Any]
    given: list[Any]
    starts = _plain(starts)
    starts = starts if isinstance(starts, list) else [starts]
    match answers := _plain(answers):
        case str():
            texts, given = ([answers], starts) if answers.strip() else ([], [])
        case {"text": str(text), **rest}:
            texts, given = [text], [rest.get("answer_start")]
        case {"text": several, **rest} if isinstance(texts := _plain(several), list):
            first = _plain(rest.get("answer_start", [None] * len(texts)))
            given = first if isinstance(first, list) else [first]
        case [*items]:
            parts = [_answer_lists(item, None, location) for item in items]
            texts, given = [text for part in parts for text in part[0]], [start for part in parts for start in part[1]]
            if len(starts) == len(texts) and all(start is None for start in given):
                given = starts
        case _:
            raise KeelError(f"{location}: the answer is {answers!r:.60}: give a text, or {EXPECTED}")
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise KeelError(f"{location}: the answer is {wrong[0]!r:.60}: give a text, or {EXPECTED}")
    if len(texts) != len(given):
        counts = f"{pluralize(len(texts), 'answer has', 'answers have')} {pluralize(len(given), 'answer_start')}"
        raise KeelError(f"{location}: {counts}: give one for each")
    pairs = [(text, start) for text, start in zip(texts, given, strict=True) if text.strip()]  # "": no answer
    try:
        return [text for text, _ in pairs], [None if is_null(each) or each == "" else int(each) for _, each in pairs]
    except (TypeError, ValueError, OverflowError):
        raise KeelError(f"{location}: an answer_start is not a number: correct it") from None


def _plain(value: Any) -> Any:
    """A list for a tuple or an array (of parquet)."""
    return value.tolist() if hasattr(value, "tolist") else [*value] if isinstance(value, tuple) else value


def _field(record: Mapping[str, Any], names: Sequence[str], own: str = "") -> Any:
    """The first of these fields that a record has; `own` is a name that was given."""
    known = {str(name).strip().lower(): value for name, value in record.items()}
    return next((known[name] for name in ([own.lower()] if own else names) if not is_null(known.get(name))), None)


def _id_of(record: Mapping[str, Any]) -> str:
    """The id of a question, which may be the number 0; empty without one."""
    found = _field(record, IDS)
    return "" if found is None else str(found)


def _not_an_object(value: Any) -> str:
    return f"this is {value!r:.60}, not an object: correct it"


def _from_squad(document: Any, name: str, reading: _Reading) -> Iterator[Example]:
    """Articles with paragraphs with questions; CMRC 2018 also has a plain list of paragraphs."""
    articles = document.get("data") if isinstance(document, Mapping) else document
    if not isinstance(articles, list):
        raise KeelError(f'{name}: there is no list of articles: give {{"data": [{{"paragraphs": [...]}}]}}')
    for number, article in enumerate(articles, 1):
        if not isinstance(article, Mapping):
            row_error(KeelError(f"{name} article {number}: {_not_an_object(article)}"))
            continue
        paragraphs = article.get("paragraphs", [article])
        title = str(article.get("title") or f"article {number}") if len(articles) > 1 else ""
        for index, paragraph in enumerate(paragraphs if isinstance(paragraphs, list) else [], 1):
            where = f"{name} article {number} paragraph {index}"
            if isinstance(paragraph, Mapping):
                yield from _from_paragraph(paragraph, where, name, title, reading)
            else:
                row_error(KeelError(f"{where}: {_not_an_object(paragraph)}"))


def _from_paragraph(
    paragraph: Mapping[str, Any], where: str, name: str, title: str, reading: _Reading
) -> Iterator[Example]:
    questions = paragraph.get("qas")
    if not isinstance(questions, list):
        row_error(KeelError(f"{where}: {NO_QUESTIONS}"))
        return
    passage = _field(paragraph, PASSAGES)
    for index, question in enumerate(questions, 1):
        location = f"{where} question {index}"
        try:
            if not isinstance(question, Mapping):
                raise KeelError(f"{location}: {_not_an_object(question)}")
            id = _id_of(question)
            yield reading.example(
                passage,
                _field(question, QUESTIONS),
                question.get("answers", question.get("answer")),
                None,
                f"{name} question {id}" if id else location,
                id=id,
                group=title,
                impossible=bool(question.get("is_impossible")),
            )
        except KeelError as error:
            row_error(error)


def _from_table(source: Any, columns: Columns, on_event: OnEvent, reading: _Reading) -> Iterator[Example]:
    """Rows with a passage, a question and answers, as Hugging Face's datasets have them; or paragraphs as in MRQA."""
    table = load_table(source, columns, on_event, pair=True)
    known = {str(name).strip().lower() for name in table.columns}
    for what, usual, own, flag in (
        ("passage", PASSAGES, columns.second_column, "--second-column"),
        ("question", QUESTIONS, columns.text_column, "--text-column"),
    ):
        if len(table) and "qas" not in known and known.isdisjoint([own.lower()] if own else usual):
            tried = repr(own) if own else f"such as {usual[0]!r}"
            raise KeelError(
                f"{table.source} has no column of the {what}, {tried}: name one of {table.column_list} with {flag}"
            )
    for row, location in zip(zip(*table.cells, strict=True), table.locations, strict=True):
        record = dict(zip(table.columns, row, strict=True))
        if isinstance(record.get("header"), Mapping) and not record.get("context"):  # MRQA's first line
            continue
        if isinstance(record.get("qas"), list):
            yield from _from_paragraph(record, location, location, str(_field(record, TITLES) or ""), reading)
            continue
        try:
            id = _id_of(record)
            yield reading.example(
                _field(record, PASSAGES, columns.second_column),
                _field(record, QUESTIONS, columns.text_column),
                _field(record, ANSWERS, columns.label_column),
                _field(record, STARTS),
                location,
                id=id,
                group=str(_field(record, TITLES[:1]) or ""),
                impossible=str(record.get("is_impossible", "")).lower() in ("true", "1"),
            )
        except KeelError as error:
            row_error(error)


def _from_items(items: list[Any], reading: _Reading) -> Iterator[Example]:
    for number, item in enumerate(items):
        location = f"item {number} of the list"
        try:
            match item:
                case [[str(passage), str(question)], answers]:
                    yield reading.example(passage, question, answers, None, location)
                case [str(passage), str(question)]:
                    yield reading.example(passage, question, None, None, location)
                case _:
                    expected = f"((passage, question), answer), (passage, question) or {EXPECTED}"
                    raise KeelError(f"{location} is {item!r:.60}: give {expected}")
        except KeelError as error:
            row_error(error)
