"""Pre-training on raw text. Start reading here; `pretrain` is the whole path from text files to a model folder."""

from pathlib import Path
from typing import Annotated, Any, Unpack

import torch

from keel.api.corpus_tokenizer import corpus_tokenizer
from keel.api.keywords import PretrainKeywords
from keel.api.probe import Probe
from keel.api.run_folder import hardware, run_folder
from keel.api.settings import OVERWRITE, Source, TextSettings, corpus_of, merge_settings, route_settings
from keel.api.starting_point import resolve_start, save_model, warn_unknown_tokens
from keel.config import Doc, to_dict, write_toml
from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, counted, ignore, note
from keel.model import Model
from keel.model_card import Card
from keel.systems.system import CountBased, CountingObjective, System, supports
from keel.training.counter_rng import derive_seed
from keel.training.distributed import World
from keel.training.loop import History, fit
from keel.training.loss_totals import validation_loss
from keel.training.objective import Objective
from keel.training.plan import Train


def pretrain(
    system: System | Model | str | Path,
    corpus: Source,
    *,
    out: str | Path,
    train: Train | None = None,
    text: TextSettings | None = None,
    probe: Annotated[
        Source | None, Doc("Labelled examples: fine-tune a copy at the end, and report its scores.")
    ] = None,
    probe_task: Annotated[str, Doc("Task of --probe.")] = "classify",
    overwrite: Annotated[bool, OVERWRITE] = False,
    on_event: OnEvent = ignore,
    **settings: Unpack[PretrainKeywords],
) -> Model:
    """Pre-train a system on raw text, or continue to pre-train a model; rerun the same call to resume.

    `system` is a System, its name, a Model or its folder. `corpus` is a file or pattern, a list of texts, a DataFrame
    or a Corpus. Settings are objects (`train=keel.Train(minutes=20)`) or single fields of them (`minutes=20`), fields
    of the system, or its `size`; what is not given is the system's default. `probe` is a labelled dataset: a copy of
    the model is fine-tuned on it, and its validation scores are stored in the model card.
    """
    values = merge_settings(settings, train=train, text=text)
    start, parent = resolve_start(system, out, values, on_event)
    chosen, plan, reading = _route(start, parent, values)
    source = corpus_of(corpus, reading, on_event)
    labelled = None if probe is None else Probe.read(probe, probe_task, plan, on_event)
    with World.join(plan.device) as world, run_folder(out, "pretrain", overwrite, world, on_event) as (run, report):
        with world.first():  # other processes read what the first one has written
            tokenizer = (
                parent.tokenizer if parent else corpus_tokenizer(source, reading, chosen, plan.seed, run, report)
            )
            _check_trainable(chosen, parent, tokenizer, labelled)
            tokens = Tokens.build(source, tokenizer, words=chosen.needs_word_starts, on_event=report)
        _report_tokens(tokens, source, chosen, parent, reading, report)
        training, validation = _split(tokens, reading, plan, report)
        torch.manual_seed(derive_seed(plan.seed, "weights"))
        encoder = chosen.build_encoder(parent.encoder.vocab_size if parent else len(tokenizer))
        objective = chosen.build_objective(encoder, tokenizer)
        if parent:
            _load_parent(objective, parent, report)
        _report_batch_size(objective, training, plan, report)
        recipe = _recipe(chosen, plan, reading, continued=parent is not None)
        if run and world.is_main and not (run / "checkpoints").exists():
            (run / "recipe.toml").write_text(write_toml(recipe), encoding="utf-8")
        history = fit(
            objective,
            training,
            plan,
            run,
            report,
            evaluate=validation_loss(validation, plan) if validation else None,
            identity=_identity(chosen, reading, parent, tokens),
            sources=_source_names(source, chosen, parent),
        )
        for message in objective.notes():
            note(report, message)
        card = _card(chosen, parent, source, training, history, recipe, out, world)
        final = chosen.continued_from(parent.system) if parent else chosen
        model = Model(system=final, encoder=encoder, tokenizer=tokenizer, objective=objective, card=card)
        save_model(model, out, world)
        if labelled:  # the model is saved before, so that a failing probe loses nothing
            card.scores["probe"] = labelled.scores_of(model, plan, report)
            save_model(model, out, world)
        return model


def _route(start: System, parent: Model | None, values: dict[str, Any]) -> tuple[System, Train, TextSettings]:
    """The system, training and text settings of a run."""
    if obstacle := supports(start, "pretrain"):
        raise UsageError(obstacle)
    defaults = start.continued_pretraining_defaults if parent else start.pretraining_defaults
    tunable = start.tunable if parent else None
    system, train, text = route_settings(values, start, defaults, TextSettings(), only=tunable)
    if isinstance(system, CountBased) and train.epochs != 1:
        length = next(name for name in Train.LENGTHS if getattr(train, name))
        raise UsageError(f"{system.name} is count-based and reads the text exactly once: leave out --{length}")
    return system, train, text.resolve(system)


def _check_trainable(system: System, parent: Model | None, tokenizer: Tokenizer, probe: Probe | None) -> None:
    """Refuse what cannot be trained before time is spent on it."""
    for obstacle in (
        probe and supports(system, probe.task.name),
        parent and system.pretraining_obstacle(tokenizer),
    ):
        if obstacle:
            raise UsageError(obstacle)


def _report_tokens(
    tokens: Tokens, source: Corpus, system: System, parent: Model | None, text: TextSettings, report: OnEvent
) -> None:
    """Warn of a tokenizer from other text that does not know this one."""
    trained_here = not parent and text.tokenizer in ("auto", "wordpiece", "bpe", "words", "characters")
    if not system.uses_subwords and not trained_here:
        warn_unknown_tokens(tokens.unknown_share, source, parent, report)


def _split(tokens: Tokens, text: TextSettings, train: Train, report: OnEvent) -> tuple[Documents, Documents | None]:
    training, validation = Documents.of(tokens).split_held_out(text.held_out, train.seed)
    sizes = f"{counted(training.size, 'token')} in {counted(len(training.spans), 'document')} for training"
    short = " (the text is too short)" if text.held_out and not validation else ""
    note(report, f"{sizes}, {counted(validation.size if validation else 0, 'token')} held out{short}")
    return training, validation


def _load_parent(objective: Objective, parent: Model, report: OnEvent) -> None:
    """Start from the parent's weights; heads that it lacks are randomly initialised."""
    weights = parent.objective.state_dict() if parent.objective else {}
    weights |= {f"encoder.{name}": value for name, value in parent.encoder.state_dict().items()}
    objective.load_state_dict(weights, strict=False)
    if parent.missing or not parent.objective:
        lacking = ", ".join(parent.missing) or "pre-training heads"
        note(report, f"{parent.card.title} lacks {lacking}: randomly initialised")


def _report_batch_size(objective: Objective, data: Documents, train: Train, report: OnEvent) -> None:
    """Warn of a batch that is larger than the dataset."""
    if isinstance(objective, CountingObjective):  # every sequence once
        return
    size = objective.epoch_size(data)
    if train.batch >= 2 * size:
        what = f"the text has {counted(size, 'sequence')}, and a batch of {train.batch:,} repeats it"
        note(report, f"{what} {train.batch // size:,} times: use more text, or a smaller --batch")


def _identity(system: System, text: TextSettings, parent: Model | None, tokens: Tokens) -> dict[str, Any]:
    """What must be equal for a run to resume."""
    return {
        "system": system.name,
        **{f"system.{name}": value for name, value in to_dict(system).items()},
        **{f"text.{name}": value for name, value in to_dict(text).items()},
        "parent": parent.fingerprint() if parent else "",
        "tokens": tokens.folder.name,
    }


def _source_names(source: Corpus, system: System, parent: Model | None) -> dict[str, str]:
    names = {"tokens": f"the text of {source}"}
    return names | ({"parent": f"the model {parent.card.title or system.name}"} if parent else {})


def _card(
    system: System,
    parent: Model | None,
    source: Corpus,
    training: Documents,
    history: History,
    recipe: dict[str, Any],
    out: str | Path,
    world: World,
) -> Card:
    return Card(
        title=Path(out).name,
        parent=parent.card.title if parent else "",
        text=f"{training.size:,} tokens of {source}",
        steps=history.steps,
        seconds=history.seconds,
        hardware=hardware(world.device),
        scores={name: value for name, value in (history.evaluations or [{}])[-1].items() if name != "step"},
        recipe=recipe,
        command=f"keel pretrain {parent.card.title if parent else system.name} CORPUS --recipe run/recipe.toml",
    )


def _recipe(system: System, train: Train, text: TextSettings, *, continued: bool) -> dict[str, Any]:
    """All settings of a run, as `--recipe` reads them; the shape of a trained model is fixed."""
    shape = to_dict(system)
    shown = {name: shape[name] for name in system.tunable} if continued else {"name": system.name, **shape}
    return {"system": shown, "train": to_dict(train), "text": to_dict(text)}
