"""The whole path as verbs: pre-train, fine-tune, evaluate, predict. Start reading here."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from keel.config import replace, to_dict, unknown_name, write_toml
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note
from keel.formats import huggingface
from keel.model import Card, Model
from keel.run import Columns, Text, hardware, refuse_same, route, run_folder
from keel.systems import SYSTEMS
from keel.systems.base import System
from keel.systems.documents import Documents
from keel.tasks import TASKS, Task
from keel.tasks.examples import Examples, Labels, hold_out, read_examples
from keel.tasks.examples import folds as split_folds
from keel.tasks.metrics import Scores
from keel.text.corpus import Corpus
from keel.text.tokenizer import Tokenizer
from keel.text.tokens import Tokens
from keel.train.checkpoint import write_folder
from keel.train.draw import seed_of
from keel.train.loop import fit, held_out_loss
from keel.train.objective import Objective
from keel.train.parallel import World, pick_device
from keel.train.plan import Train

Source = Any
"""Wherever a file may stand: a path, a glob, "-", a list, (text, label) pairs, a DataFrame."""


def pretrain(
    system: System | str | Path,
    corpus: Source,
    *,
    out: str | Path,
    overwrite: bool = False,
    on_event: OnEvent = ignore,
    **settings: Any,
) -> Model:
    """Learn a system from raw text, or go on with the model in a folder; the same call again goes on where it stopped.

    `system` is a System, its name, or a model folder. `settings` are single fields of the system, of `Train` and of
    `Text`, or a `size`.
    """
    start, parent = _start(system, out, settings, on_event)
    chosen, train, text = route(settings, start, start.train, Text(), fixed=parent is not None)
    with World.join(train.device) as world, run_folder(out, overwrite, world, on_event) as (run, say):
        with world.first():  # the other processes then find what the first one made
            source = corpus if isinstance(corpus, Corpus) else Corpus(
                corpus, text_column=text.column, encoding=text.encoding, dedup=text.dedup, on_event=say
            )  # fmt: skip
            tokenizer = parent.tokenizer if parent else _tokenizer(source, text, train.seed, run, say)
            tokens = Tokens.build(source, tokenizer, words=chosen.needs_words, on_event=say)
        learned, held = Documents.of(tokens).split(text.held_out, train.seed)
        counted = f"{learned.size:,} tokens in {len(learned.spans):,} documents to learn from"
        note(say, f"{counted}, {held.size if held else 0:,} tokens held out")
        torch.manual_seed(seed_of(train.seed, "weights"))
        encoder = chosen.encoder(parent.encoder.vocabulary if parent else len(tokenizer))
        objective = chosen.objective(encoder, tokenizer)
        if parent:
            _inherit(objective, parent, say)
        recipe = {"system": {"name": chosen.name, **to_dict(chosen)}, "train": to_dict(train), "text": to_dict(text)}
        if run and world.leads and not (run / "recipe.toml").exists():
            (run / "recipe.toml").write_text(write_toml(recipe), encoding="utf-8")
        identity = {f"system.{name}": value for name, value in to_dict(chosen).items()}
        identity |= {"tokens": tokens.folder.name, "parent": parent.card.title if parent else ""}
        evaluate = held_out_loss(held.to(world.device), train) if held else None
        history = fit(objective, learned.to(world.device), train, run, say, evaluate=evaluate, identity=identity)
        card = Card(
            title=Path(out).name,
            parent=parent.card.title if parent else "",
            text=f"{learned.size:,} tokens of {source}",
            steps=history.steps,
            seconds=history.seconds,
            hardware=hardware(world.device),
            scores={name: value for name, value in (history.evaluations or [{}])[-1].items() if name != "step"},
            recipe=recipe,
            command=f"keel pretrain {parent.card.title if parent else chosen.name} CORPUS --recipe run/recipe.toml",
        )
        model = Model(system=chosen, encoder=encoder, tokenizer=tokenizer, objective=objective, card=card)
        return _saved(model, out, world)


def finetune(
    base: Model | str | Path,
    data: Source,
    *,
    task: str = "classify",
    out: str | Path | None = None,
    dev: Source = "10%",
    test: Source | None = None,
    folds: int = 0,
    seeds: int = 1,
    freeze: bool = False,
    from_scratch: bool = False,
    overwrite: bool = False,
    on_event: OnEvent = ignore,
    **settings: Any,
) -> Model:
    """Teach a model a task by labelled examples; the scores are in the model's card.

    `dev` is a source, a share of `data` such as "10%", or None. With several `seeds` the run that is best on dev is
    kept; with `folds` every example is also scored once by a model that has not seen it. `settings` are single fields
    of `Train` and `Columns`.
    """
    if task not in TASKS:
        raise unknown_name(task, TASKS, "--task")
    if out is not None and not isinstance(base, Model):
        refuse_same(base, out)
    parent = base if isinstance(base, Model) else Model.load(base, on_event=on_event)
    train, columns = route(settings, parent.system.tuning(freeze), Columns())
    with World.join(train.device) as world, run_folder(out, overwrite, world, on_event) as (run, say):
        examples, held = _read_split(task, columns, data, dev, train.seed, say)
        tested = _read(task, columns, test, say) if test is not None else None
        tuning = _Tuning(parent, task, examples.labels, train, freeze, from_scratch, say)
        for apart in (held, tested):  # a label that was never learned is found before anything is learned
            if apart is not None:
                tuning.labels.targets(apart)
        scores: dict[str, Any] = {}
        if folds:
            scores["folds"] = tuning.cross_validate(examples, folds, run)
        tuned = [tuning.one(examples, held, train.seed + number, run) for number in range(seeds)]
        best, on_dev = max(tuned, key=lambda pair: pair[1].main_value if pair[1] else 0.0)
        if on_dev:
            scores["dev"] = on_dev.brief()
            if seeds > 1:
                scores["seeds"] = tuning.summarize("seeds", [found for _, found in tuned if found])
        if tested is not None:
            on_test = best.score(tested, best.predict(tested, on_event=say))
            say({"event": "scores", "on": "test", **on_test.to_dict()})
            scores["test"] = on_test.brief()
        card = Card(
            title=Path(out).name if out else "",
            parent=parent.card.title,
            text=f"{len(examples):,} examples of {Path(examples.source).name}",
            hardware=hardware(world.device),
            scores=scores,
            recipe={"task": task, "freeze": freeze, "from_scratch": from_scratch, "train": to_dict(train)},
        )
        model = Model(system=parent.system, encoder=best.encoder, tokenizer=parent.tokenizer, task=best, card=card)
        return _saved(model.to(world.device), out, world)


@dataclass(frozen=True)
class _Tuning:
    """What the runs of one `finetune` share."""

    parent: Model
    task: str
    labels: Labels
    train: Train
    freeze: bool
    from_scratch: bool
    say: OnEvent

    def one(self, examples: Examples, dev: Examples | None, seed: int, run: Path | None) -> tuple[Task, Scores | None]:
        """One run: a new head on the parent's encoder (from scratch: on a new one), trained, then scored on dev."""
        torch.manual_seed(seed_of(seed, "weights"))
        system = self.parent.system
        encoder = system.encoder(self.parent.encoder.vocabulary)
        if not self.from_scratch:
            encoder.load_state_dict(self.parent.encoder.state_dict())
        train = replace(self.train, seed=seed)
        task = TASKS[self.task](system, encoder, self.parent.tokenizer, self.labels, frozen=self.freeze)
        task.to(pick_device(train.device))
        prepared = task.prepare(examples, batch_size=train.batch, on_event=self.say)
        fit(
            task, prepared, train, run and run / f"seed-{seed}", self.say, identity={"examples": _fingerprint(examples)}
        )
        if dev is None:
            return task, None
        scores = task.score(dev, task.predict(dev, on_event=self.say))
        self.say({"event": "scores", "on": "dev", "seed": seed, **scores.to_dict()})
        return task, scores

    def cross_validate(self, examples: Examples, count: int, run: Path | None) -> dict[str, Any]:
        """Every example scored once, by a run that learned from the other folds."""
        parts = enumerate(split_folds(examples, count, self.train.seed))
        scores = [
            self.one(rest, fold, self.train.seed, run and run / f"fold-{number}")[1] for number, (rest, fold) in parts
        ]
        return self.summarize("folds", [found for found in scores if found])

    def summarize(self, what: str, scores: list[Scores]) -> dict[str, Any]:
        """The mean of the main score over several runs, and each."""
        values = [found.main_value for found in scores]
        listed = ", ".join(f"{value:.3f}" for value in values)
        note(self.say, f"{scores[0].main} over {len(values)} {what}: {mean(values):.3f} on average ({listed})")
        return {"main": scores[0].main, "mean": mean(values), "values": values}


def evaluate(
    model: Model | str | Path,
    data: Source,
    *,
    out: str | Path | None = None,
    on_event: OnEvent = ignore,
    **settings: Any,
) -> Scores:
    """The model's scores on labelled examples, with intervals; with `out` also confusion.tsv and errors.tsv there."""
    model, task = _with_task(model, on_event)
    (columns,) = route(settings, Columns())
    examples = _read(task.name, columns, data, on_event)
    scores = task.score(examples, task.predict(examples, on_event=on_event))
    if out is not None:
        scores.write(Path(out))
    return scores


def predict(
    model: Model | str | Path, data: Source, *, on_event: OnEvent = ignore, **settings: Any
) -> Iterator[dict[str, Any]]:
    """One record for each text of a source: where it stands, the text and what the model says of it."""
    model, task = _with_task(model, on_event)
    (columns,) = route(settings, Columns())
    examples = _read(task.name, columns, data, on_event)
    found = task.predict(examples, on_event=on_event).to_dicts()
    for example, record in zip(examples, found, strict=True):
        texts = {"text": example.text} if example.second is None else {"text": example.text, "second": example.second}
        yield {**texts, **record}


def fill(text: str, *, model: Model | str | Path, top: int = 5, on_event: OnEvent = ignore) -> list[list[Any]]:
    """The likeliest words for every [MASK] (or ___) of a text."""
    return _loaded(model, on_event).fill(text, top=top)


def embed(
    texts: Source, *, model: Model | str | Path, layer: int = -1, pool: str = "mean", on_event: OnEvent = ignore
) -> Any:
    """Vectors of texts: one for each, or with pool="none" one for each piece in its context."""
    return _loaded(model, on_event).encode(texts, layer=layer, pool=pool, on_event=on_event)


def convert(source: str | Path, out: str | Path, *, overwrite: bool = False, on_event: OnEvent = ignore) -> None:
    """Make a Keel folder of a model that others saved, and check that both give the same numbers."""
    huggingface.convert(Path(source), Path(out), overwrite=overwrite, on_event=on_event)


def _start(
    system: System | str | Path, out: str | Path, settings: dict[str, Any], on_event: OnEvent
) -> tuple[System, Model | None]:
    """The system to train and, where that is to go on with a folder, the model in it."""
    if isinstance(system, System):
        return system, None
    if system in SYSTEMS:
        kind = SYSTEMS[str(system)]
        size = settings.pop("size", "")
        return kind.sized(size) if size else kind(), None
    refuse_same(system, out)
    parent = Model.load(system, on_event=on_event)
    return parent.system, parent


def _tokenizer(corpus: Corpus, text: Text, seed: int, run: Path | None, say: OnEvent) -> Tokenizer:
    """The tokenizer named by the settings, learned unless an earlier try of this run did."""
    if run and (run / "tokenizer").is_dir():
        return Tokenizer.load(run / "tokenizer")
    if text.tokenizer in ("auto", "wordpiece", "bpe", "words", "characters"):
        tokenizer = Tokenizer.train(
            corpus,
            kind=text.tokenizer,
            size=text.vocabulary,
            lowercase={"auto": "auto", "yes": True, "no": False}[text.lowercase],
            sample=text.sample,
            seed=seed,
            on_event=say,
        )
    else:
        tokenizer = Tokenizer.load(text.tokenizer)
    if run:
        write_folder(run / "tokenizer", tokenizer.save)
    return tokenizer


def _inherit(objective: Objective, parent: Model, say: OnEvent) -> None:
    """Start from the parent's weights; heads that it lacks start at random, and that is said."""
    weights = parent.objective.state_dict() if parent.objective else {}
    weights |= {f"encoder.{name}": value for name, value in parent.encoder.state_dict().items()}
    objective.load_state_dict(weights, strict=False)
    if parent.missing or not parent.objective:
        lacking = ", ".join(parent.missing) or "pre-training heads"
        note(say, f"{parent.card.title} lacks {lacking}: they start at random")


def _read(task: str, columns: Columns, source: Source, say: OnEvent) -> Examples:
    return read_examples(source, pair=TASKS[task].pair, on_event=say, **to_dict(columns))


def _read_split(
    task: str, columns: Columns, data: Source, dev: Source, seed: int, say: OnEvent
) -> tuple[Examples, Examples | None]:
    """What to learn from and what to watch; a share of the first, such as "10%", is held out by label."""
    examples = _read(task, columns, data, say)
    if dev is None or dev == "none":
        return examples, None
    if not (isinstance(dev, str) and dev.endswith("%")):
        return examples, _read(task, columns, dev, say)
    try:
        share = float(dev[:-1]) / 100
    except ValueError:
        raise UsageError(f"--dev {dev} is neither a file nor a share such as 10%") from None
    learned, held = hold_out(examples, share, seed)
    how = f"{dev} of every label, seed {seed}; --dev to change"
    note(say, f"{len(held):,} of {len(examples):,} examples are held out as dev ({how})")
    return learned, held


def _fingerprint(examples: Examples) -> str:
    content = repr([(example.text, example.second, example.label) for example in examples])
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _with_task(model: Model | str | Path, on_event: OnEvent) -> tuple[Model, Task]:
    model = _loaded(model, on_event)
    if model.task is None:
        raise UsageError(f"{model.card.title or 'the model'} knows no task yet: fine-tune it first (keel finetune)")
    return model, model.task


def _loaded(model: Model | str | Path, on_event: OnEvent) -> Model:
    return model if isinstance(model, Model) else Model.load(model, on_event=on_event)


def _saved(model: Model, out: str | Path | None, world: World) -> Model:
    if out is not None and world.leads:
        model.save(out, overwrite=True)
    return model
