"""The contract of sources: every verb and method that takes texts, times every kind of source in memory.

Texts in any form give what the list of these texts gives; what has no texts is refused in one sentence.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

import keel
from keel.api.sklearn_classifier import Classifier
from keel.errors import KeelError

pandas = pytest.importorskip("pandas")

TEXTS = ["the old film was good", "a quiet garden", "the film , the story", "good story"]
LABELS = ["good", "bad", "good", "bad"]
PAIRS = [*zip(TEXTS, TEXTS[::-1], strict=True)]
TINY: dict[str, Any] = {"layers": 1, "width": 16, "head_dim": 16, "dropout": 0.0}
BERT = keel.Bert(**TINY, max_positions=32, sequence_length=32)
ONCE: dict[str, Any] = {"steps": 1, "batch": 4, "dev": None, "device": "cpu"}


class OtherFrame:
    """A table of another library: polars has `columns`, and columns with `to_list`."""

    def __init__(self, columns: dict[str, list[Any]]):
        self.columns = [*columns]
        self.shape = (len(columns["text"]), len(columns))
        self.values = columns

    def __getitem__(self, name: str) -> Any:
        return type("Column", (), {"to_list": lambda column, values=self.values[name]: [*values]})()


TABLE = {"label": LABELS, "text": TEXTS}
LISTS: dict[str, Any] = {
    "tuple": lambda: tuple(TEXTS),
    "generator": lambda: (text for text in TEXTS),
    "array of str": lambda: np.array(TEXTS),
    "array of objects": lambda: np.array(TEXTS, dtype=object),
    "series": lambda: pandas.Series(TEXTS, index=[5, 3, 9, 1]),
    "index": lambda: pandas.Index(TEXTS),
    "pyarrow array": lambda: pyarrow.array(TEXTS),
    "keys": lambda: dict.fromkeys(TEXTS).keys(),
}
TABLES: dict[str, Any] = {
    "pandas": lambda: pandas.DataFrame(TABLE),
    "pandas, another index": lambda: pandas.DataFrame(TABLE, index=["text", "b", "c", "d"]),
    "pyarrow": lambda: pyarrow.table(TABLE),
    "other": lambda: OtherFrame(TABLE),
    "records": lambda: [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)],
    "generator of records": lambda: iter([{"text": text} for text in TEXTS]),
}
ONE: dict[str, Any] = {
    "record": lambda: {"label": "good", "text": TEXTS[0]},
    "row": lambda: pandas.DataFrame(TABLE).iloc[0],
}
BAD: dict[str, Any] = {
    "None": lambda: None,
    "number": lambda: 5,
    "bytes": lambda: b"a text",
    "NaN in a list": lambda: [*TEXTS, float("nan")],
    "None in a list": lambda: [None, *TEXTS],
    "NaN in a series": lambda: pandas.Series([*TEXTS, None]),
    "None in a table": lambda: pandas.DataFrame({"text": [*TEXTS, None]}),
    "NaN in a table": lambda: pandas.DataFrame({"text": [*TEXTS, float("nan")]}),
    "no column of texts": lambda: pandas.DataFrame({"x": [1, 2], "y": [3, 4]}),
    "a column twice": lambda: pandas.DataFrame([["a", "b"]], columns=["text", "text"]),
    "record without text": lambda: {"a": "the old film", "b": "a garden"},
    "set": lambda: {*TEXTS},
    "numbers": lambda: np.arange(3.0),
}


class Models:
    """Little models, each made once."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.made: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in self.made:
            self.made[name] = getattr(self, f"make_{name}")()
        return self.made[name]

    def make_classifier(self) -> keel.Model:
        return keel.finetune(BERT, [*zip(TEXTS, LABELS, strict=True)], task="classify", **ONCE)

    def make_bert(self) -> keel.Model:
        return keel.pretrain(BERT, TEXTS * 8, out=self.folder / "bert", steps=1, batch=2, device="cpu")

    def make_gpt(self) -> keel.Model:
        system = keel.Gpt(**TINY, max_positions=32, sequence_length=32)
        return keel.pretrain(system, TEXTS * 8, out=self.folder / "gpt", steps=1, batch=2, device="cpu")

    def make_seq2seq(self) -> keel.Model:
        system = keel.Transformer(layers=1, decoder_layers=1, width=16, head_dim=16, max_positions=32, dropout=0.0)
        return keel.finetune(system, PAIRS * 4, task="seq2seq", **ONCE)

    def make_estimator(self) -> Classifier:
        return Classifier(self.classifier, **{**ONCE, "steps": 1}).fit(TEXTS, LABELS)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


Entry = Callable[[Models, Any], Any]


def predicted(model: keel.Model, source: Any) -> list[Any]:
    return [(record["text"], record["label"]) for record in keel.predict(model, source)]


def trained(models: Models, source: Any) -> str:
    """The weights after one step on the source: a fingerprint of what was read."""
    out = models.folder / f"run{len([*models.folder.iterdir()])}"
    return keel.pretrain(BERT, source, out=out, steps=1, batch=2, device="cpu").fingerprint()


# Where texts are expected, a str is the text.
TEXT_ENTRIES: dict[str, Entry] = {
    "Model.predict": lambda models, source: models.classifier.predict(source),
    "Model.encode": lambda models, source: models.classifier.encode(source),
    "Model.encode_layers": lambda models, source: models.classifier.encode_layers(source),
    "embed": lambda models, source: keel.embed(source, model=models.classifier),
    "segment": lambda models, source: keel.segment(source),
    "generate": lambda models, source: keel.generate(source, model=models.gpt, tokens=3),
    "translate": lambda models, source: [*map(str, keel.translate(source, model=models.seq2seq, beams=1))],
    "Classifier.predict": lambda models, source: models.estimator.predict(source),
    "Classifier.predict_proba": lambda models, source: models.estimator.predict_proba(source),
    "Classifier.fit": lambda models, source: (
        Classifier(models.classifier, **ONCE).fit(source, LABELS).predict_proba(TEXTS)
    ),
    "Classifier.score": lambda models, source: models.estimator.score(source, LABELS),
}
# Where a dataset or corpus is expected, a str is a file.
DATA_ENTRIES: dict[str, Entry] = {
    "predict": lambda models, source: predicted(models.classifier, source),
    "nearest": lambda models, source: keel.nearest("the film", model=models.classifier, among=source),
    "senses": lambda models, source: keel.senses("film", source, model=models.classifier).to_dict(),
    "clusters": lambda models, source: keel.clusters(source, model=models.classifier, clusters=2).to_dict(),
    "perplexity": lambda models, source: keel.perplexity(models.gpt, source).to_dict(),
    "pretrain": trained,
    "check": lambda models, source: facts(keel.check(source)),
}
# These need labels.
LABELLED_ENTRIES: dict[str, Entry] = {
    "evaluate": lambda models, source: str(keel.evaluate(models.classifier, source)),
    "finetune": lambda models, source: keel.finetune(BERT, source, task="classify", **ONCE).predict(TEXTS),
}
# These take one text, or a word.
SINGLE_ENTRIES: dict[str, Entry] = {
    "Model.fill": lambda models, source: models.bert.fill(source),
    "fill": lambda models, source: keel.fill(source, model=models.bert),
    "ask": lambda models, source: keel.ask(source, "who?", model=models.gpt),
    "summarize": lambda models, source: keel.summarize(source, model=models.gpt),
    "explain_prediction": lambda models, source: keel.explain_prediction(source, model=models.classifier, steps=2),
    "similarity": lambda models, source: keel.similarity(source, "film", model=models.classifier),
    "next_sentence": lambda models, source: keel.next_sentence(source, "film", model=models.bert),
    "attention": lambda models, source: keel.attention(source, model=models.classifier),
    "trace": lambda models, source: keel.trace(source, model=models.classifier),
    "analogy": lambda models, source: keel.analogy(source, model=models.bert),
    "odd": lambda models, source: keel.odd(source, model=models.bert),
    "nearest (query)": lambda models, source: keel.nearest(source, model=models.bert),
    "figure": lambda models, source: keel.figure("input", text=source, model=models.bert),
    "senses (word)": lambda models, source: keel.senses(source, TEXTS, model=models.classifier),
}
# A missing text among others is an empty one, with a note. `compare` reads datasets as `finetune` does.
MISSING_IS_EMPTY = (
    "predict", "nearest", "senses", "clusters", "Model.predict", "Model.encode", "Model.encode_layers", "embed",
    "segment",
)  # fmt: skip
WITHOUT_TEXTS = {"bias", "compare", "convert", "glue", "layers", "probe_layers", "retrieval", "runs", "word_map",
                 *(f"Model.{name}" for name in
                 ("load", "from_stored", "outline", "of_vectors", "vector_space", "to", "fingerprint", "unknown_share",
                  "tensors", "save", "to_stored")), "Classifier.get_params", "Classifier.set_params"}  # fmt: skip


def facts(report: keel.Report) -> Any:
    """What a check counts, and its errors; the column of labels is no difference between texts."""
    return [finding.cause for finding in report.errors], [facts.get("documents") for facts in report.files.values()]


def same(one: Any, other: Any) -> bool:
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else repr(one) == repr(other)


def test_every_verb_and_method_is_covered() -> None:
    public = [(name, getattr(keel, name)) for name in dir(keel)]
    verbs = {name for name, value in public if inspect.isfunction(value)}
    methods = {
        f"{each.__name__}.{name}"
        for each in (keel.Model, Classifier)
        for name, value in vars(each).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, classmethod))
    }
    covered = {*TEXT_ENTRIES, *DATA_ENTRIES, *LABELLED_ENTRIES, *SINGLE_ENTRIES, *WITHOUT_TEXTS}
    assert verbs | methods <= covered


@pytest.mark.parametrize("name", [*TEXT_ENTRIES, *DATA_ENTRIES])
def test_texts_in_any_form_are_those_of_the_list(name: str, models: Models) -> None:
    entry = {**TEXT_ENTRIES, **DATA_ENTRIES}[name]
    expected = entry(models, TEXTS)
    kinds = LISTS | TABLES
    if name == "check":  # with labels, a table is checked as labelled examples
        kinds = LISTS
    if name == "pretrain":
        kinds = {kind: kinds[kind] for kind in ("series", "pandas", "pyarrow", "records")}
    wrong = [kind for kind, make in kinds.items() if not same(entry(models, make()), expected)]
    assert wrong == []


@pytest.mark.parametrize("name", LABELLED_ENTRIES)
def test_labelled_examples_in_any_form(name: str, models: Models) -> None:
    entry = LABELLED_ENTRIES[name]
    expected = entry(models, [*zip(TEXTS, LABELS, strict=True)])
    kinds = {kind: make for kind, make in TABLES.items() if kind != "generator of records"}
    kinds["generator"] = lambda: zip(TEXTS, LABELS, strict=True)
    wrong = [kind for kind, make in kinds.items() if not same(entry(models, make()), expected)]
    assert wrong == []


@pytest.mark.parametrize("kind", TABLES)
def test_check_counts_the_rows_of_a_table(kind: str) -> None:
    (found,) = keel.check(TABLES[kind]()).files.values()
    assert (sum(found["labels"].values()) if "labels" in found else found["documents"]) == len(TEXTS)


def test_check_counts_labelled_pairs() -> None:
    (found,) = keel.check([*zip(TEXTS, LABELS, strict=True)]).files.values()
    assert found["labels"] == {"good": 2, "bad": 2}


@pytest.mark.parametrize("kind", ONE)
@pytest.mark.parametrize("name", ["Model.predict", "Model.encode", "embed", "generate"])
def test_a_record_is_one_example(name: str, kind: str, models: Models) -> None:
    assert same(TEXT_ENTRIES[name](models, ONE[kind]()), TEXT_ENTRIES[name](models, TEXTS[0]))


@pytest.mark.parametrize("name", [*TEXT_ENTRIES, *DATA_ENTRIES, *LABELLED_ENTRIES, *SINGLE_ENTRIES])
def test_what_has_no_texts_is_refused(name: str, models: Models) -> None:
    entry = {**TEXT_ENTRIES, **DATA_ENTRIES, **LABELLED_ENTRIES, **SINGLE_ENTRIES}[name]
    found: dict[str, Any] = {}
    for kind, make in BAD.items():
        try:
            found[kind] = entry(models, make())
        except KeelError as error:
            found[kind] = str(error)
    if name in MISSING_IS_EMPTY:
        found = {kind: each for kind, each in found.items() if not kind.startswith(("NaN", "None in"))}
    if name == "check":  # which reports errors
        found = {kind: " ".join(each[0]) or each if isinstance(each, tuple) else each for kind, each in found.items()}
    assert {kind: each for kind, each in found.items() if not isinstance(each, str) or "\n" in each} == {}


@pytest.mark.parametrize("name", SINGLE_ENTRIES)
def test_several_texts_where_one_is_expected_are_refused(name: str, models: Models) -> None:
    for make in (LISTS | TABLES).values():
        with pytest.raises(KeelError):
            SINGLE_ENTRIES[name](models, make())


def test_the_columns_of_a_table_can_be_named(models: Models) -> None:
    table = pandas.DataFrame({"title": ["x"] * 4, "what": TEXTS, "n": range(4)})
    assert same(models.classifier.predict(table, text_column="what"), models.classifier.predict(TEXTS))
    assert same(models.classifier.encode(table, text_column="what"), models.classifier.encode(TEXTS))
    assert same(keel.embed(table, model=models.classifier, text_column="what"), models.classifier.encode(TEXTS))
    named = Classifier(models.classifier, text_column="what", **ONCE).fit(table, LABELS)
    assert same(named.predict_proba(table), models.estimator.predict_proba(TEXTS))


def test_predict_does_not_read_labels(models: Models) -> None:
    table = pandas.DataFrame({"text": TEXTS, "label": [None, 3, "unseen", float("nan")]})
    assert same(models.classifier.predict(table), models.classifier.predict(TEXTS))


def test_a_missing_text_is_empty_by_one_rule(models: Models) -> None:
    expected = ["", *TEXTS]
    for make in (
        lambda: pandas.DataFrame({"text": [None, *TEXTS]}),
        lambda: pandas.Series([None, *TEXTS]),
        lambda: [float("nan"), *TEXTS],
        lambda: [{"text": None}, *({"text": text} for text in TEXTS)],
    ):
        entries: list[tuple[Any, Any]] = [
            (models.classifier.predict, models.classifier.predict(expected)),
            (models.classifier.encode, models.classifier.encode(expected)),
            (lambda source, **options: [*keel.predict(models.classifier, source, **options)], None),
            (keel.segment, keel.segment(expected)),
        ]
        for verb, wanted in entries:
            events: list[Any] = []
            found = verb(make(), on_event=events.append)
            assert wanted is None or same(found, wanted)
            assert ["1 text is missing" in event["text"] for event in events] == [True]
    for missing in (None, {"text": None}, [None, None]):
        with pytest.raises(KeelError):
            models.classifier.predict(missing)


def test_tables_of_the_other_tasks() -> None:
    pair = keel.finetune(BERT, [*zip(PAIRS, LABELS, strict=True)], task="pair", **ONCE)
    table = pandas.DataFrame(PAIRS, columns=["premise", "hypothesis"])
    assert same(pair.predict(table), pair.predict(PAIRS))
    assert same(pair.predict(dict(table.iloc[0])), pair.predict(PAIRS[0]))
    words = [text.split() for text in TEXTS]
    tag = keel.finetune(BERT, [(each, ["A", *"B" * (len(each) - 1)]) for each in words], task="tag", **ONCE)
    assert same(tag.predict(pandas.DataFrame({"tokens": words})), tag.predict(words))
    assert same(tag.predict(pyarrow.table({"tokens": words})), tag.predict(words))
    assert same(tag.predict(pandas.DataFrame({"text": TEXTS, "id": range(4)})), tag.predict(TEXTS))
    items = [(text, ["yes", "no"]) for text in TEXTS]
    choose = keel.finetune(BERT, [(item, 0) for item in items], task="choose", **ONCE)
    table = pandas.DataFrame({"context": TEXTS, "choices": [["yes", "no"]] * 4})
    assert same(choose.predict(table), choose.predict(items))
    assert same(choose.predict({"context": TEXTS[0], "choices": ["yes", "no"]}), choose.predict(items[0]))
