"""Pre-training on raw text. Start reading here; `pretrain` is the whole path from text files to a model folder."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np
import torch

from keel.api.finetuning import finetune
from keel.api.finetuning_setup import LabelledData
from keel.api.keywords import PretrainKeywords, TrainKeywords
from keel.api.progress import repeating_command, shows_progress
from keel.api.run_folder import TOKENIZER, hardware, run_folder
from keel.api.settings import OVERWRITE, Source, TextSettings, corpus_of, merge_settings, route_settings
from keel.api.starting_point import resolve_start, save_model, warn_unknown_tokens
from keel.api.unit_finding import describe_entities, listed_units, report_units, with_phrases
from keel.config import Doc, replace, to_dict, unknown_name
from keel.data.corpus import Corpus
from keel.data.corpus_snapshot import CorpusSnapshot
from keel.data.documents import Documents
from keel.data.examples import Columns
from keel.data.language_mix import repeats_per_epoch, smoothed_shares
from keel.data.language_sampling import documents_by_language, mix_languages
from keel.data.masking_units import MaskingUnits
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.data.tokenizer_training import TokenizerSettings, train_tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.model import Model
from keel.model_card import Card
from keel.nn.encoder import EncoderObjective
from keel.systems.system import CountBased, CountingObjective, System
from keel.tasks import TASKS
from keel.toml_files import write_toml
from keel.training.checkpoint import write_folder
from keel.training.counter_rng import derive_seed
from keel.training.distributed import World
from keel.training.loop import Evaluate, History, fit, thread_limit
from keel.training.loss_totals import validation_loss, validation_loss_of_parts
from keel.training.objective import Objective
from keel.training.plan import Train

__all__ = ["pretrain"]

TOKEN_LOSSES = ("mlm", "next")
"""Losses per token of a whole softmax, which can be compared with the entropy of token frequencies."""
PLATEAU_STEPS = 200
"""Steps of a run that should have learned more than token frequencies."""
TRAINED = ("auto", "wordpiece", "bpe", "words", "characters")
"""Tokenizers that are trained on the corpus; any other name is a folder."""


@shows_progress
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
    progress: bool = True,
    on_event: OnEvent = ignore,
    **settings: Unpack[PretrainKeywords],
) -> Model:
    """Pre-train a system on raw text, or continue to pre-train a model; rerun the same call to resume.

    `system` is a System, its name, a Model or its folder. `corpus` is a file or pattern, a list of texts, a DataFrame
    or a Corpus. Settings are objects (`train=keel.Train(minutes=20)`) or single fields of them (`minutes=20`), fields
    of the system, or its `size`; what is not given is the system's default. `probe` is a labelled dataset: a copy of
    the model is fine-tuned on it, and its validation scores are stored in the model card. Progress is
    shown unless `progress` is False or `on_event` is given.
    """
    values = merge_settings(settings, train=train, text=text)
    start, parent = resolve_start(system, out, values, on_event)
    chosen, plan, reading = _route(start, parent, values, on_event)
    source = corpus_of(corpus, reading, on_event)
    listed = listed_units(reading, plan.device, on_event) if chosen.needs_units else None
    probed = None if probe is None else _read_probe(probe, probe_task, chosen, plan, on_event)
    with (
        thread_limit(plan.threads),
        World.join(plan.device) as world,
        run_folder(out, "pretrain", overwrite, world, on_event) as (run, report),
    ):
        with world.first():  # other processes read what the first one has written
            tokenizer = parent.tokenizer if parent else _tokenizer(source, reading, chosen, plan.seed, run, report)
            units = listed and with_phrases(listed, source, reading.phrases, report)
            tokens = Tokens.build(source, tokenizer, words=chosen.needs_word_starts, units=units, on_event=report)
        if units:
            report_units(tokens, units, chosen, run, report)
        if not chosen.uses_subwords and (parent or reading.tokenizer not in TRAINED):  # made for another text
            warn_unknown_tokens(tokens.unknown_share, source, parent, report)
        training, held_out = _split(tokens, reading, plan, report)
        torch.manual_seed(derive_seed(plan.seed, "weights"))
        encoder = chosen.build_encoder(parent.encoder.vocab_size if parent else len(tokenizer))
        objective = chosen.build_objective(encoder, tokenizer)
        if parent:
            _load_parent(objective, parent, report)
        _report_batch_size(objective, training, plan, report)
        recipe = _recipe(chosen, plan, reading, continued=parent is not None)
        if run and world.is_main and not (run / "checkpoints").exists():
            (run / "recipe.toml").write_text(write_toml(recipe), encoding="utf-8")
        parent_name = parent.card.title if parent else ""
        sources = {"tokens": f"the text of {source}"}
        if parent:
            sources["parent"] = f"the model {parent_name or chosen.name}"
        if units:
            sources["units"] = describe_entities(reading)
        identity = _identity(chosen, reading, parent, units, tokens)
        evaluate = _validation(held_out, tokens, reading, plan)
        history = fit(
            objective,
            training,
            plan,
            run,
            report,
            evaluate=evaluate,
            identity=identity,
            earlier_identity=chosen.earlier_identity(),
            sources=sources,
        )
        for message in [*objective.notes(), *_plateau_warning(tokens, history)]:
            note(report, message)
        card = Card(
            command=repeating_command(),
            title=Path(out).name,
            parent=parent_name,
            text=f"{training.size:,} tokens of {source}",
            steps=history.steps,
            seconds=history.seconds,
            hardware=hardware(world.device, history),
            scores={name: value for name, value in (history.evaluations or [{}])[-1].items() if name != "step"},
            recipe=recipe,
        )
        final = chosen.continued_from(parent.system) if parent else chosen
        model = Model(system=final, encoder=encoder, tokenizer=tokenizer, objective=objective, card=card)
        save_model(model, out, world)
        if probed:  # the model is saved before, so that a failing probe loses nothing
            same: TrainKeywords = {"seed": plan.seed, "device": plan.device}
            tuned = finetune(model, probed.train, dev=probed.dev, task=probe_task, on_event=report, **same)
            card.scores["probe"] = tuned.card.scores["dev"]
            save_model(model, out, world)
        return model


def _route(
    start: System, parent: Model | None, values: dict[str, Any], on_event: OnEvent
) -> tuple[System, Train, TextSettings]:
    """The system, training and text settings of a run."""
    defaults = _continued_defaults(start, parent, on_event) if parent else start.pretraining_defaults
    tunable = start.tunable if parent else None
    system, train, text = route_settings(values, start, defaults, TextSettings(), only=tunable)
    if reason := system.unsupported_reason("pretrain", trained=parent is not None):
        raise UsageError(reason)
    if isinstance(system, CountBased) and train.epochs != 1:
        length = next(name for name in Train.LENGTHS if getattr(train, name))
        raise UsageError(f"{system.name} is count-based and reads the text exactly once: leave out --{length}")
    if parent and (obstacle := system.pretraining_obstacle(parent.tokenizer)):
        raise UsageError(obstacle)
    if not system.needs_units and (given := {"entities", "entity_model"} & text.non_default().keys()):
        flag = f"--text.{min(given).replace('_', '-')}"
        raise UsageError(f"{flag} is for masking entities as a whole, which {system.name} does not do: use ernie")
    return system, train, text.resolve(system)


def _continued_defaults(system: System, parent: Model, on_event: OnEvent) -> Train:
    """Training settings of continued pre-training: the system's own second stage, or else those of the parent's run."""
    defaults, recorded = system.continued_pretraining_defaults, parent.card.recipe.get("train", {})
    if defaults != system.pretraining_defaults or "task" in parent.card.recipe or not recorded:
        return defaults
    inherited = {name: recorded[name] for name in Train.INHERITED if name in recorded}
    if changed := {name: value for name, value in inherited.items() if value != getattr(defaults, name)}:
        listed = ", ".join(f"{name} {value}" for name, value in changed.items())
        note(on_event, f"training settings of {parent.card.title or 'the model'} are kept: {listed}")
    return replace(defaults, **inherited)


def _plateau_warning(tokens: Tokens, history: History) -> list[str]:
    """A warning if the model has not learned more than the frequencies of the tokens."""
    losses = [
        history.evaluations[-1][name]
        for name in TOKEN_LOSSES
        if history.evaluations and name in history.evaluations[-1]
    ]
    if not losses or history.steps < PLATEAU_STEPS:
        return []
    counts = np.bincount(tokens.ids[:1_000_000])
    shares = counts[counts > 0] / counts.sum()
    entropy = float(-(shares * np.log(shares)).sum())
    if losses[0] < 0.97 * entropy:
        return []
    what = f"the validation loss of {losses[0]:.2f} per token is that of token frequencies alone ({entropy:.2f})"
    return [
        f"{what}, so context is not used yet: train longer, use --train.optimizer muon, a longer --train.warmup or "
        "a lower --lr"
    ]


def _read_probe(source: Source, task: str, system: System, train: Train, on_event: OnEvent) -> LabelledData:
    """The labelled examples of the probe, a tenth of them held out; all is checked before the system is trained."""
    if task not in TASKS:
        raise unknown_name(task, TASKS, "--probe-task")
    if reason := system.unsupported_reason(task, trained=True):
        raise UsageError(reason)
    kind = TASKS[task]
    found = LabelledData.read(kind, Columns(), source, "10%", seed=train.seed, on_event=on_event)
    if found.dev is None:
        raise UsageError("--probe has too few examples to hold out a tenth of them: give more")
    kind.check_scorable(found.dev, kind.label_schema(found.train))
    return found


def _tokenizer(
    corpus: Corpus, text: TextSettings, system: System, seed: int, run: Path | None, report: OnEvent
) -> Tokenizer:
    """Train or load the tokenizer; one that an earlier attempt of the same run has trained is reused."""
    if text.tokenizer == "auto":
        text = replace(text, tokenizer=system.default_tokenizer)
    frequent_pairs = text.tokenizer == "bpe" and not text.vocabulary and not text.min_count
    explicit = " asked" if text.tokenizer == "bpe" and not frequent_pairs else ""
    min_count = text.min_count or (system.default_min_count if text.tokenizer == "words" else 0)
    text = replace(text, vocabulary=text.vocabulary or system.default_vocab_size, min_count=min_count)
    # The key is that of earlier versions, so that their runs find their tokenizer.
    snapshot = CorpusSnapshot.of(corpus)
    mixed = f" smoothing {text.language_smoothing}" if corpus.languages else ""
    oversize = f" oversize {text.oversize:g}" if text.oversize > 1 else ""
    identity = f"{_identity_of_text(text)} {seed} {snapshot.fingerprint}{explicit}{mixed}{oversize}"
    key = hashlib.blake2b(identity.encode()).hexdigest()[:12]
    stored = run and run / f"{TOKENIZER}{key}"
    if stored and stored.is_dir():
        return Tokenizer.load(stored)
    if text.tokenizer in TRAINED:
        settings = TokenizerSettings(
            kind=text.tokenizer,
            vocab_size=text.vocabulary,
            oversize=text.oversize,
            lowercase={"auto": system.default_lowercase, "yes": True, "no": False}[text.lowercase],
            min_count=text.min_count,
            frequent_pairs=frequent_pairs,
            phrases=0 if system.needs_units else text.phrases,
            language_smoothing=text.language_smoothing,
            sample=text.sample,
            seed=seed,
        )
        tokenizer = train_tokenizer(corpus, settings, report)
        snapshot.require_unchanged()
    else:
        tokenizer = Tokenizer.load(text.tokenizer)
    if stored:
        write_folder(stored, tokenizer.save)
    return tokenizer


def _split(tokens: Tokens, text: TextSettings, train: Train, report: OnEvent) -> tuple[Documents, dict[str, Documents]]:
    """Documents for training, and those held out, by language; of a corpus without languages under an empty name."""
    whole = documents_by_language(tokens) if tokens.languages else {"": Documents.of(tokens)}
    halves = {language: each.split_held_out(text.held_out, train.seed) for language, each in whole.items()}
    held_out = {language: held for language, (_, held) in halves.items() if held}
    training = halves[""][0] if "" in halves else _mix(tokens, halves, text.language_smoothing, train.seed, report)
    sizes = f"{pluralize(training.size, 'token')} in {pluralize(len(training.spans), 'document')} for training"
    short = " (the text is too short)" if text.held_out and not held_out else ""
    note(report, f"{sizes}, {pluralize(sum(each.size for each in held_out.values()), 'token')} held out{short}")
    return training, held_out


def _mix(
    tokens: Tokens,
    halves: Mapping[str, tuple[Documents, Documents | None]],
    smoothing: float,
    seed: int,
    report: OnEvent,
) -> Documents:
    """An epoch of all languages in smoothed shares."""
    sizes = [each["bytes"] for each in tokens.languages.values()]
    shares, repeats = smoothed_shares(sizes, smoothing), repeats_per_epoch(sizes, smoothing)
    listed = (
        f"{language} {share:.1%} (x {count:.2f})"
        for language, share, count in zip(tokens.languages, shares, repeats, strict=True)
    )
    what = f"an epoch samples languages by their size to the power {smoothing:g}, and repeats their text"
    if len(sizes) > 1:
        note(report, f"{what}: {', '.join(listed)}; change with --text.language_smoothing")
    return mix_languages({language: learned for language, (learned, _) in halves.items()}, sizes, smoothing, seed)


def _validation(held_out: Mapping[str, Documents], tokens: Tokens, text: TextSettings, train: Train) -> Evaluate | None:
    """The validation losses; of several languages their mean by share, and that of each."""
    if not tokens.languages or not held_out:
        return validation_loss(held_out[""], train) if held_out else None
    sizes = [tokens.languages[language]["bytes"] for language in held_out]
    shares = dict(zip(held_out, smoothed_shares(sizes, text.language_smoothing).tolist(), strict=True))
    return validation_loss_of_parts(held_out, shares, train)


def _load_parent(objective: Objective, parent: Model, report: OnEvent) -> None:
    """Start from the parent's weights; heads that it lacks are randomly initialised."""
    weights = parent.objective.state_dict() if parent.objective else {}
    weights |= {f"encoder.{name}": value for name, value in parent.encoder.state_dict().items()}
    objective.load_state_dict(weights, strict=False)
    if isinstance(objective, EncoderObjective):
        objective.trained_length = parent.system.max_length
    if parent.missing or not parent.objective:
        lacking = ", ".join(parent.missing) or "pre-training heads"
        note(report, f"{parent.card.title} lacks {lacking}: randomly initialised")


def _report_batch_size(objective: Objective, data: Documents, train: Train, report: OnEvent) -> None:
    """Warn of a batch that is larger than the dataset."""
    if isinstance(objective, CountingObjective):  # every sequence once
        return
    size = objective.epoch_size(data)
    if train.batch >= 2 * size:
        what = f"the text has {pluralize(size, 'sequence')}, and a batch of {train.batch:,} repeats it"
        note(report, f"{what} {train.batch // size:,} times: use more text, or a smaller --batch")


def _identity(
    system: System, text: TextSettings, parent: Model | None, units: MaskingUnits | None, tokens: Tokens
) -> dict[str, Any]:
    """What must be equal for a run to resume."""
    return {
        "system": system.name,
        **{f"system.{name}": value for name, value in to_dict(system).items()},
        **{f"text.{name}": value for name, value in _identity_of_text(text).items()},
        **({"text.language_smoothing": text.language_smoothing} if tokens.languages else {}),
        "parent": parent.fingerprint() if parent else "",
        **({"units": units.fingerprint()} if units else {}),
        "tokens": tokens.folder.name,
    }


def _identity_of_text(text: TextSettings) -> dict[str, Any]:
    """The settings that earlier versions have: the fingerprints of corpus and tokens include separator, entities and
    the tokenizer, and the smoothing counts where there are several languages."""
    elsewhere = ("separator", "entities", "entity_model", "language_smoothing", "oversize")
    return {name: value for name, value in to_dict(text).items() if name not in elsewhere}


def _recipe(system: System, train: Train, text: TextSettings, *, continued: bool) -> dict[str, Any]:
    """All settings of a run, as `--recipe` reads them; the shape of a trained model is fixed."""
    shape = to_dict(system)
    shown = {name: shape[name] for name in system.tunable} if continued else {"name": system.name, **shape}
    return {"system": shown, "train": to_dict(train), "text": to_dict(text)}
