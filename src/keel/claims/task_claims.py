"""Claims about tasks: one output layer for each, the generations side by side, and a data set of another domain."""

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import parameter_count, show_figure
from keel.claims.small_models import (
    NO_DROPOUT,
    Examples,
    learn_sentences,
    package_sentences,
    pretrained_by_demo,
    read_docstrings,
    stored_comparison,
)
from keel.demo.docstrings import Docstring, balanced, text_hash
from keel.metrics.significance import ALPHA, student_t_quantile, total_error

TOPICS = {
    "sea": "boat anchor sail harbour wave captain",
    "kitchen": "bread oven soup recipe cake cook",
    "law": "judge case verdict court witness crime",
    "garden": "rose orchard field hive tree farmer",
}
TASK_BERT = keel.Bert(**NO_DROPOUT, layers=2, width=64, head_dim=32, max_positions=64, sequence_length=16)


@dataclass(frozen=True)
class Form:
    """A form of task, the tasks of the paper that have it, and examples of it."""

    tasks: str
    task: str
    examples: list[Any]
    guess: float
    """Score of a constant answer."""
    columns: keel.Columns | None = None


def one_output_layer(say: Say) -> Verdict:
    """110: one small BERT is fine-tuned on each form of the paper's eleven tasks; which parameters are new?"""
    random = Random(0)
    documents = ["\n".join(f"{topic} {_words(topic, 4, random)}" for _ in "ab") for topic in [*TOPICS] * 150]
    base = learn_sentences(documents, TASK_BERT, steps=400)
    shared = {f"encoder.{name}" for name, _ in base.encoder.named_parameters()}
    size = parameter_count(base.encoder)
    say(f"one pre-trained BERT of {size:,} parameters; for each form of task: new parameters, score on new examples")
    largest, learned, single = 0, [], []
    forms = _forms(random)
    for form in forms:
        model = keel.finetune(
            base, form.examples[300:], task=form.task, dev=None, epochs=6, batch=32, lr=1e-3, columns=form.columns
        )
        assert model.task is not None
        found = keel.evaluate(model, form.examples[:300], columns=form.columns)
        score = found.values[found.main]
        new = [weight for name, weight in model.task.named_parameters() if name not in shared]
        count = sum(weight.numel() for weight in new)
        shapes = " + ".join("x".join(map(str, weight.shape)) for weight in new)
        say(f"{form.task}, {form.tasks}: {count} ({shapes}); {found.main} {score:.2f}, guessing {form.guess:.2f}")
        largest = max(largest, count)
        learned.append((score.low or 0.0) > form.guess)
        single.append([weight.dim() for weight in new] == [2, 1])  # the weights and biases of one linear layer
    show_figure(say, "heads")
    return Verdict(
        all(learned) and all(single),
        f"in {sum(single)} of {len(forms)} forms one linear layer is all that is new (at most {largest} parameters, "
        f"{largest / size:.1%} of the encoder's), and {sum(learned)} of them are learned",
    )


def ranking_of_generations(say: Say) -> Verdict:
    """117: counts, fastText, word2vec and BERT on two tasks, with paired tests."""
    docstrings = read_docstrings(say)
    models = pretrained_by_demo(docstrings, say)
    packages = package_sentences(docstrings, 150, say)
    kinds = tuple(_summaries(docstrings, held_out=held_out, count=1000) for held_out in (False, True))
    say(f"is a sentence the first of its docstring? {len(kinds[0])} labels, {len(kinds[1])} test sentences")
    train, test = zip(packages, kinds, strict=True)
    rows = ["onehot", "fasttext", models["word2vec"], models["bert"]]
    found = stored_comparison("generations", rows, say, train=list(train), test=list(test), seeds=3)
    ahead: Counter[str] = Counter()
    for name, column in zip(("package", "first sentence"), found.columns, strict=True):
        ranked = found.ranking(column)
        say(f"{name}: {', '.join(f'{cell.row} {cell.score:.3f}' for cell in ranked)}")
        for pair in found.tests(column):
            if "bert" in (pair.first, pair.second):
                ahead[pair.better or "undecided"] += 1
    others = sum(ahead.values()) - ahead["bert"] - ahead["undecided"]
    figures = (
        f"of {sum(ahead.values())} comparisons with an earlier system (two tasks), BERT is ahead in {ahead['bert']} "
        f"and behind in {others}; {ahead['undecided']} are not decided"
    )
    return Verdict(False if others else None if ahead["undecided"] else True, figures)


def another_domain(say: Say) -> Verdict:
    """118: networks of one task and a fine-tuned BERT, trained on one package's docstrings, tested on another's."""
    docstrings = read_docstrings(say)
    models = pretrained_by_demo(docstrings, say)
    home = [each for each in docstrings if each.package == "torch"]
    away = [each for each in docstrings if each.package == "sympy"]
    train = _summaries(home, held_out=False, count=700)
    tests = _summaries(home, held_out=True, count=350), _summaries(away, held_out=True, count=350)
    say(f"is a sentence the first of its docstring? {len(train)} labels, all of torch")
    rows = ["cnn", "onehot", models["word2vec"], models["bert"]]
    found = stored_comparison("another-domain", rows, say, train=train, test=tests[0], transfer=[tests[1]], seeds=3)
    losses = {row: _loss(found, row) for row in found.rows}
    for row, loss in losses.items():
        here, there = (found.cell(row, column).score for column in found.columns)
        say(f"{row}: torch {here:.3f}, sympy {there:.3f}; loss {100 * loss.value:.1f} points ({_interval(loss)})")
    network = losses["cnn"]
    more = _loss(found, "cnn", "bert")
    figures = (
        f"on the other package the CNN loses {100 * network.value:.1f} points ({_interval(network)}), "
        f"{100 * more.value:+.1f} ({_interval(more)}) compared with BERT"
    )
    if network.high < 0 or more.high < 0:
        return Verdict(False, figures)
    return Verdict(True if network.low > 0 and more.low > 0 else None, figures)


@dataclass(frozen=True)
class Loss:
    """A difference of scores between two test sets, with its 95% interval."""

    value: float
    low: float
    high: float


def _loss(found: keel.Comparison, row: str, less: str | None = None) -> Loss:
    """The score on the first test set minus that on the second, or the difference of two rows in it; the error is that
    of the test items (paired) plus that of the seeds."""
    chosen = [row, less] if less else [row]
    items = [[found.cell(each, column).result.by_item for each in chosen] for column in found.columns]
    paired = [values[0] - values[1] if less else values[0] for values in items]
    seeds = [[np.array(found.cell(each, column).result.by_seed) for column in found.columns] for each in chosen]
    parts = [(float(np.var(values)) / len(values), len(values) - 1) for values in paired]
    parts += [(float(np.var(here - there, ddof=1)) / len(here), len(here) - 1) for here, there in seeds]
    error, freedom = total_error(*parts)
    half = student_t_quantile(1 - ALPHA / 2, freedom) * error
    value = float(paired[0].mean() - paired[1].mean())
    return Loss(value, value - half, value + half)


def _interval(loss: Loss) -> str:
    return f"{100 * loss.low:+.1f} to {100 * loss.high:+.1f}"


def _summaries(docstrings: list[Docstring], *, held_out: bool, count: int) -> Examples:
    """`count` first sentences of docstrings, which summarise them, and as many second ones; sentences that occur twice
    are left out."""
    seen = Counter(sentence for docstring in docstrings for sentence in docstring.sentences)
    pairs = [
        (sentence, kind)
        for docstring in docstrings
        if docstring.held_out == held_out
        for sentence, kind in zip(docstring.sentences, ("first", "later"), strict=False)
        if seen[sentence] == 1
    ]
    return balanced(sorted(pairs, key=lambda pair: text_hash(pair[0])), count)


def _forms(random: Random, count: int = 1300) -> list[Form]:
    """Examples of each form about four topics."""
    names = [*TOPICS]
    classes: list[Any] = []
    pairs: list[Any] = []
    degrees: list[Any] = []
    tagged: list[Any] = []
    choices: list[Any] = []
    questions: list[Any] = []
    for number in range(count):
        one, other = random.sample(names, 2)
        classes.append((_words(one, 4, random), one))
        same = number % 2 == 0
        pairs.append((_words(one, 3, random), _words(one if same else other, 3, random), "same" if same else "other"))
        common = number % 5
        mixed = [*_words(one, common, random).split(), *_words(other, 4 - common, random).split()]
        degrees.append((_words(one, 3, random), " ".join(random.sample(mixed, 4)), float(common)))
        tags = random.choices(names, k=5)
        tagged.append(([_words(tag, 1, random) for tag in tags], tags))
        order = random.sample(names, 4)
        right = random.randrange(4)
        choices.append(((_words(order[right], 3, random), [_words(each, 3, random) for each in order]), right))
        spans = [_words(each, 2, random) for each in order[:3]]
        answered = random.randrange(3)
        passage = " ".join(spans)
        answer = {"text": spans[answered], "answer_start": passage.index(spans[answered])}
        questions.append({"context": passage, "question": order[answered], "answers": [answer]})
    return [
        Form("one text: SST-2, CoLA", "classify", classes, 1 / 4),
        Form("two texts: MNLI, QQP, QNLI, MRPC, RTE", "pair", pairs, 1 / 2),
        Form("two texts, a number: STS-B", "pair", degrees, 0.0, keel.Columns(labels="regression")),
        Form("each word: CoNLL-2003", "tag", tagged, 1 / 4),
        Form("four endings: SWAG", "choose", choices, 1 / 4),
        Form("a span: SQuAD 1.1", "answer", questions, 1 / 3),
    ]


def _words(topic: str, count: int, random: Random) -> str:
    return " ".join(random.sample(TOPICS[topic].split(), count))
