"""Fine-tuning as a verb: what a task is learned from, by whom, and what comes of it."""

import dataclasses
import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from keel.api.finetuning_runs import FineTuningRuns
from keel.api.run_folder import hardware, refuse_same, run_folder
from keel.api.settings import VocabularySettings, route_settings
from keel.config import to_dict, unknown_name
from keel.data.corpus import Corpus
from keel.data.examples import Columns, Examples, Labels, split_validation
from keel.data.label_kinds import TextTarget
from keel.data.tokenizer import Tokenizer
from keel.data.tokenizer_training import TokenizerSettings, train_tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note
from keel.explain.layer_weights import layer_weights
from keel.model import UNREADABLE, Model
from keel.model_card import Card
from keel.systems import SYSTEMS
from keel.systems.system import System
from keel.tasks import TASKS, Task
from keel.tasks.task import HeadSettings
from keel.training.counter_rng import derive_seed
from keel.training.distributed import World

Source = Any
"""Wherever a file may stand: a path, a glob, "-", a list, (text, label) pairs, a DataFrame."""


def finetune(
    base: Model | System | str | Path,
    data: Source,
    *,
    task: str = "classify",
    out: str | Path | None = None,
    dev: Source = "10%",
    test: Source | None = None,
    folds: int = 0,
    seeds: int = 1,
    freeze: bool | None = None,
    from_scratch: bool = False,
    overwrite: bool = False,
    on_event: OnEvent = ignore,
    **settings: Any,
) -> Model:
    """Teach a model a task by labelled examples; the scores are in the model's card.

    `base` may also be a System or its name: a new model then learns from the examples alone, words included. `dev` is a
    source, a share of `data` such as "10%", or None. With several `seeds` the run that is best on dev is kept; with
    `folds` every example is also scored once by a model that has not seen it. With `freeze` the encoder stays as it is,
    which is the system's own choice unless told. `settings` are single fields of `Train`,
    `Columns` and `Head`, and of the system: of a new model's all, of a trained one's those that leave its shape alone.
    """
    if task not in TASKS:
        raise unknown_name(task, TASKS, "--task")
    if freeze and from_scratch:
        raise UsageError("--freeze keeps what was learned and --from-scratch drops it: choose one of them")
    if seeds < 1:
        raise UsageError(f"--seeds must be 1 or more, not {seeds}")
    start, parent = resolve_start(base, out, settings, on_event, labels=True)
    if freeze is None:
        freeze = start.feature_based and parent is not None and not from_scratch and "unfreeze" not in settings
        if freeze:
            note(on_event, f"{start.name} stays as it is and the head alone learns: --no-freeze to tune all of it")
    if freeze and parent is None:
        raise UsageError(f"--freeze keeps what was learned, and {start.name} has learned nothing yet: give its folder")
    kind = TASKS[task]
    network = settings.get("network", "none") != "none" or settings.get("characters", "none") != "none"
    tuned = kind.finetuning_defaults(start, freeze, network=network)
    as_it_is = not freeze and not network and not settings.get("mix")  # the encoder's top layer is what is read
    foretelling = (
        start.finetuning_policy.head_defaults().get("lm_loss", 0.0)
        if as_it_is and "lm_loss" in kind.head_fields
        else 0.0
    )
    mixed = start.feature_based and "mix" in kind.head_fields and not settings.get("lm_loss")
    usual = HeadSettings(mix=mixed, lm_loss=foretelling)
    system, train, columns, head, pieces = route_settings(
        settings,
        start,
        tuned,
        Columns(),
        usual,
        VocabularySettings(),
        only=start.finetuning_policy.fields if parent else None,
    )
    if parent and pieces != VocabularySettings():
        raise UsageError(f"{parent.card.title or 'the model'} has its pieces already: leave out their settings")
    for name in head.non_default():
        if name not in kind.head_fields:
            able = " or ".join(each for each, other in TASKS.items() if name in other.head_fields)
            raise UsageError(f"--{name.replace('_', '-')} is for --task {able}, not for {task}: leave it out")
    if foretelling and "lm_loss" not in settings:
        note(
            on_event,
            f"{start.name} also learns to foretell the rows of the task: --lm-loss {foretelling:g}, 0 for none",
        )
    everything = kind.read_examples(data, columns, on_event)
    labels = kind.label_schema(everything)  # what nothing can be learned from is refused before it is split
    examples, held = split(everything, kind, columns, dev, train.seed, on_event)
    tested = None if test is None else kind.read_examples(test, columns, on_event)
    scored = held, tested, everything if folds else None
    for apart in scored:  # a label that was never learned is found before anything is learned
        if apart is not None:
            kind.check_scorable(apart, labels)
    with World.join(train.device) as world, run_folder(out, "finetune", overwrite, world, on_event) as (run, say):
        from_scratch = from_scratch or parent is None
        system = system.finetuning_policy.adapt_system(labels.kind, examples.label_counts, frozen=freeze or network)
        if parent is None:
            parent, labels = _words_of(system, kind, examples, labels, pieces, train.seed, say)
        else:
            if not isinstance(labels.kind, TextTarget):  # of which single unknown pieces are told
                warn_unknown_tokens(parent.unknown_share(examples), examples.source, parent, say)
            if isinstance(parent.task, kind):
                labels = dataclasses.replace(labels, tokenizer=parent.task.labels.tokenizer)
        parent = _learner(system, parent, train.seed)
        tuning = FineTuningRuns(parent, kind, labels, train, head, freeze, from_scratch, say)
        scores: dict[str, Any] = {}
        if folds:
            scores["folds"] = tuning.cross_validate(everything, folds, run)
        best = tuning.best_of(seeds, examples, held, run, scores)
        if tested is not None:
            on_test = best.task.score(tested, best.task.predict(tested, on_event=say))
            say({"event": "scores", "on": "test", **on_test.to_dict()})
            scores["test"] = on_test.brief()
        card = Card(
            title=Path(out).name if out else "",
            parent=parent.card.title,
            text=f"{len(examples):,} examples of {Path(examples.source).name}",
            steps=best.history.steps,
            seconds=best.history.seconds,
            hardware=hardware(world.device),
            scores=scores,
            recipe={
                "task": task,
                "freeze": freeze,
                "from_scratch": from_scratch,
                **head.non_default(),
                "train": to_dict(train),
            },
        )
        model = Model(
            system=best.task.system, encoder=best.task.encoder, tokenizer=parent.tokenizer, task=best.task, card=card
        )
        if best.task.mix is not None:
            note(say, f"the learned mix: {layer_weights(model).brief()}")
        return save_model(model.to(world.device), out, world)


def resolve_start(
    system: System | Model | str | Path,
    out: str | Path | None,
    settings: dict[str, Any],
    on_event: OnEvent,
    *,
    labels: bool = False,
) -> tuple[System, Model | None]:
    """The system to train, by text or by labels, and, where one is to be gone on with, the model."""
    known = isinstance(system, str) and system in SYSTEMS
    if not known and settings.get("size"):
        raise UsageError("--size is of a new model, and this one has its own: leave it out, or name a system")
    if isinstance(system, System):
        return system, None
    if isinstance(system, Model):
        return system.system, system
    if known:
        kind = SYSTEMS[str(system)]
        size = settings.pop("size", "")
        return kind.sized(size) if size else kind().finetuning_policy.from_scratch_system() if labels else kind(), None
    if not isinstance(system, str | Path):
        raise UsageError(f"{system!r} is nothing that can learn: give a system, its name, a model or its folder")
    if not os.path.exists(system):
        near = get_close_matches(str(system), SYSTEMS, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"take one of {', '.join(SYSTEMS)}, or a folder that exists"
        raise UsageError(f"{str(system)!r} is neither a system nor a model folder: {remedy}")
    if out is not None:
        refuse_same(system, out)
    parent = Model.load(system, device="auto" if labels else "cpu", on_event=on_event)
    return parent.system, parent


def split(
    examples: Examples, task: type[Task], columns: Columns, dev: Source, seed: int, on_event: OnEvent
) -> tuple[Examples, Examples | None]:
    """What to learn from and what to score on; a share of the first, such as "10%", is held out by label."""
    if dev is None or (isinstance(dev, str) and dev == "none"):
        return examples, None
    if not (isinstance(dev, str) and dev.endswith("%")):
        return examples, task.read_examples(dev, columns, on_event)
    try:
        share = float(dev[:-1]) / 100
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise UsageError(f"--dev {dev} is neither a file nor a share between 0% and 100%, such as 10%")
    learned, held = split_validation(examples, share, seed)
    if not held:
        note(on_event, "no example is held out as dev, for each has a label that no other has: --dev FILE gives one")
        return learned, None
    how = f"{dev}, seed {seed}; --dev to change"
    note(on_event, f"{len(held):,} of {len(examples):,} examples are held out as dev ({how})")
    return learned, held


def warn_unknown_tokens(share: float, source: object, model: Model | None, say: OnEvent) -> None:
    """Say that a text is hardly read by what is to learn from it, if it is."""
    if share > UNREADABLE:
        whom = (model and model.card.title) or "the model"
        remedy = "it learns little from them; take a model, or a tokenizer, of such text"
        note(say, f"{source}: {share:.0%} of the pieces are unknown to {whom}: {remedy}")


def _words_of(
    system: System,
    task: type[Task],
    examples: Examples,
    labels: Labels,
    pieces: VocabularySettings,
    seed: int,
    say: OnEvent,
) -> tuple[Model, Labels]:
    """A new model that knows the words of these examples but has no weights yet, and labels that know how they are
    written."""

    def learn(texts: list[str], kind: str) -> Tokenizer:
        chosen: Any = kind if pieces.tokenizer == "auto" else pieces.tokenizer
        settings = TokenizerSettings(
            kind=chosen,
            vocab_size=pieces.vocabulary or system.default_vocab_size,
            min_count=0 if chosen == "bpe" else 1,
            seed=seed,
        )
        return train_tokenizer(Corpus.of(texts), settings, say)

    told = say if pieces.tokenizer == "auto" else ignore  # who names a kind need not hear which would be taken
    tokenizer, other = task.train_tokenizers(system, examples, learn, separate=pieces.separate, on_event=told)
    tokenizer = system.finetuning_policy.extend_new_tokenizer(tokenizer)
    with torch.device("meta"):
        model = Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer)
    return model, dataclasses.replace(labels, tokenizer=other)


def _learner(system: System, parent: Model, seed: int) -> Model:
    """The parent with other settings for the task, and vectors for the marks of its rows: its encoder keeps every
    weight that fits."""
    tokenizer = system.finetuning_policy.extend_tokenizer(parent.tokenizer)
    if system == parent.system and tokenizer is parent.tokenizer:
        return parent
    vocabulary = max(parent.encoder.vocab_size, len(tokenizer))
    with torch.device("meta"):
        encoder = system.build_encoder(vocabulary)
    shapes = {name: tensor.shape for name, tensor in encoder.state_dict().items()}
    held = parent.encoder.state_dict()
    weights = {name: tensor for name, tensor in held.items() if tensor.shape == shapes[name]}
    grown = (torch.Size([parent.encoder.vocab_size]), torch.Size([vocabulary]))
    if weights.keys() != shapes.keys() and next(parent.encoder.parameters()).device.type != "meta":
        torch.manual_seed(derive_seed(seed, "marks"))  # the same every time, so that a run can be taken up again
        encoder = system.build_encoder(vocabulary).to(parent.device)
        for name, new in encoder.state_dict().items():
            old = held[name]
            if name not in weights and (old.shape[:1], new.shape[:1]) == grown and old.shape[1:] == new.shape[1:]:
                weights[name] = torch.cat([old, new[len(old) :]])
    encoder.load_state_dict(weights, strict=False, assign=True)
    return dataclasses.replace(parent, system=system, encoder=encoder, tokenizer=tokenizer)


def save_model(model: Model, out: str | Path | None, world: World) -> Model:
    """The model, written to its folder, if it has one, by the process that leads."""
    if out is not None and world.is_main:
        model.save(out, overwrite=True)
    return model
