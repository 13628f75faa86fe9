"""The whole path as verbs: pre-train, fine-tune, evaluate, predict. Start reading here."""

import hashlib
from pathlib import Path
from typing import Any

import torch

from keel.api.finetuning import Source, finetune, resolve_start, save_model, split, warn_unknown_tokens
from keel.api.run_folder import TOKENIZER, hardware, run_folder
from keel.api.settings import TextSettings, VocabularySettings, corpus_of, route_settings
from keel.config import replace, to_dict, unknown_name, write_toml
from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.examples import Columns
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.data.tokenizer_training import TokenizerSettings, train_tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, counted, ignore, note
from keel.model import Model
from keel.model_card import Card
from keel.systems.system import CountBased, CountingObjective, System
from keel.tasks import TASKS
from keel.training.checkpoint import write_folder
from keel.training.counter_rng import derive_seed
from keel.training.distributed import World
from keel.training.loop import fit
from keel.training.loss_totals import validation_loss
from keel.training.objective import Objective
from keel.training.plan import Train


def pretrain(
    system: System | Model | str | Path,
    corpus: Source,
    *,
    out: str | Path,
    probe: Source | None = None,
    probe_task: str = "classify",
    overwrite: bool = False,
    on_event: OnEvent = ignore,
    **settings: Any,
) -> Model:
    """Learn a system from raw text, or go on with a trained model; the same call again goes on where it stopped.

    `system` is a System, its name, a Model or its folder. `corpus` is files, a DataFrame, or a list of texts of which
    none names a file and one at least has blanks or is not English; `Corpus.of` takes any texts. `settings` are single
    fields of the system, of `Train` and of `Text`, or a `size`. On labelled examples in `probe` a copy of the
    result is fine-tuned in the same run: its scores on a held-out tenth go into the card.
    """
    start, parent = resolve_start(system, out, settings, on_event)
    if start.supervised_only:
        raise UsageError(f"{start.name} learns from labels, not from text alone: use keel finetune {start.name} FILE")
    usual = start.continued_pretraining_defaults if parent else start.pretraining_defaults
    chosen, train, text = route_settings(settings, start, usual, TextSettings(), only=start.tunable if parent else None)
    if isinstance(chosen, CountBased) and train.epochs != 1:
        said = next(name for name in Train.LENGTHS if getattr(train, name))
        raise UsageError(f"{chosen.name} counts all of a text once, however long that takes: leave out --{said}")
    text = text.resolve(chosen)
    source = corpus_of(corpus, text, on_event)
    examples = apart = probed = None
    if probe is not None:  # what is wrong with it shows before anything is learned
        if probe_task not in TASKS:
            raise unknown_name(probe_task, TASKS, "--probe-task")
        kind = TASKS[probe_task]
        examples, apart = split(
            kind.read_examples(probe, on_event=on_event), kind, Columns(), "10%", train.seed, on_event
        )
        if apart is None:
            raise UsageError("the examples of --probe are too few to hold a tenth of them out: give more")
        probed = kind, kind.label_schema(examples)
        kind.check_scorable(apart, probed[1])
    with World.join(train.device) as world, run_folder(out, "pretrain", overwrite, world, on_event) as (run, say):
        with world.first():  # the other processes then find what the first one made
            tokenizer = parent.tokenizer if parent else _tokenizer(source, text, chosen, train.seed, run, say)
            if probed:  # a task that this system cannot learn is refused before anything is learned
                with torch.device("meta"):
                    probed[0](chosen, chosen.build_encoder(len(tokenizer)), tokenizer, probed[1])
            if parent:  # and so is more text, where a model cannot learn on
                with torch.device("meta"):
                    chosen.build_objective(chosen.build_encoder(parent.encoder.vocab_size), tokenizer)
            tokens = Tokens.build(source, tokenizer, words=chosen.needs_word_starts, on_event=say)
        if not chosen.uses_subwords and (
            parent or text.tokenizer not in VocabularySettings.KINDS
        ):  # pieces of other text
            warn_unknown_tokens(tokens.unknown_share, source, parent, say)
        learned, held = Documents.of(tokens).split_held_out(text.held_out, train.seed)
        read = f"{counted(learned.size, 'token')} in {counted(len(learned.spans), 'document')} to learn from"
        short = " (the text is too short)" if text.held_out and not held else ""
        note(say, f"{read}, {counted(held.size if held else 0, 'token')} held out{short}")
        torch.manual_seed(derive_seed(train.seed, "weights"))
        encoder = chosen.build_encoder(parent.encoder.vocab_size if parent else len(tokenizer))
        objective = chosen.build_objective(encoder, tokenizer)
        if parent:
            _inherit(objective, parent, say)
        if remark := _too_many_rows(objective, learned, train):
            note(say, remark)
        recipe = _recipe(chosen, train, text, continued=parent is not None)
        if run and world.is_main and not (run / "checkpoints").exists():
            (run / "recipe.toml").write_text(write_toml(recipe), encoding="utf-8")
        identity = {
            "system": chosen.name,
            **{f"system.{name}": value for name, value in to_dict(chosen).items()},
            **{f"text.{name}": value for name, value in to_dict(text).items()},
            "parent": parent.fingerprint() if parent else "",
            "tokens": tokens.folder.name,
        }
        sources = {"tokens": f"the text of {source}"}
        if parent:
            sources["parent"] = f"the model {parent.card.title or chosen.name}"
        evaluate = validation_loss(held, train) if held else None
        history = fit(objective, learned, train, run, say, evaluate=evaluate, identity=identity, sources=sources)
        for remark in objective.notes():
            note(say, remark)
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
        grown = chosen.continued_from(parent.system) if parent else chosen
        model = Model(system=grown, encoder=encoder, tokenizer=tokenizer, objective=objective, card=card)
        save_model(model, out, world)
        if examples is not None:  # whatever happens to the probe, the model stands
            tuned = finetune(
                model, examples, dev=apart, task=probe_task, seed=train.seed, device=train.device, on_event=say
            )
            card.scores["probe"] = tuned.card.scores["dev"]
            save_model(model, out, world)
        return model


def _tokenizer(
    corpus: Corpus, text: TextSettings, system: System, seed: int, run: Path | None, say: OnEvent
) -> Tokenizer:
    """The tokenizer named by the settings, or by the system, learned unless an earlier try of this run did."""
    if text.tokenizer == "auto":
        text = replace(text, tokenizer=system.default_tokenizer)
    frequent_pairs = text.tokenizer == "bpe" and not text.vocabulary and not text.min_count
    suffix = " asked" if text.tokenizer == "bpe" and not frequent_pairs else ""
    least = text.min_count or (system.default_min_count if text.tokenizer == "words" else 0)
    text = replace(text, vocabulary=text.vocabulary or system.default_vocab_size, min_count=least)
    # A run by default that began when rare pieces were learned too finds its own again: its key does not tell.
    key = hashlib.blake2b(f"{to_dict(text)} {seed} {corpus.fingerprint()}{suffix}".encode()).hexdigest()[:12]
    kept = run and run / f"{TOKENIZER}{key}"
    if kept and kept.is_dir():
        return Tokenizer.load(kept)
    if text.tokenizer in ("auto", "wordpiece", "bpe", "words", "characters"):
        settings = TokenizerSettings(
            kind=text.tokenizer,
            vocab_size=text.vocabulary,
            lowercase={"auto": system.default_lowercase, "yes": True, "no": False}[text.lowercase],
            min_count=text.min_count,
            frequent_pairs=frequent_pairs,
            phrases=text.phrases,
            sample=text.sample,
            seed=seed,
        )
        tokenizer = train_tokenizer(corpus, settings, say)
    else:
        tokenizer = Tokenizer.load(text.tokenizer)
    if kept:
        write_folder(kept, tokenizer.save)
    return tokenizer


def _too_many_rows(objective: Objective, data: Documents, train: Train) -> str:
    """What to say of a batch for which there is far too little text; of any other nothing."""
    if isinstance(objective, CountingObjective):
        return ""
    rows = objective.epoch_size(data)
    if train.batch < 2 * rows:
        return ""
    fills = f"{rows:,} rows" if rows > 1 else "one row"
    times = f"a step of {train.batch:,} rows reads it {train.batch // rows:,} times"
    return f"the text fills {fills} and {times}: give more text, or a smaller --batch"


def _inherit(objective: Objective, parent: Model, say: OnEvent) -> None:
    """Start from the parent's weights; heads that it lacks start at random, and that is said."""
    weights = parent.objective.state_dict() if parent.objective else {}
    weights |= {f"encoder.{name}": value for name, value in parent.encoder.state_dict().items()}
    objective.load_state_dict(weights, strict=False)
    if parent.missing or not parent.objective:
        lacking = ", ".join(parent.missing) or "pre-training heads"
        start = "it starts" if len(parent.missing) == 1 else "they start"
        note(say, f"{parent.card.title} lacks {lacking}: {start} at random")


def _recipe(system: System, train: Train, text: TextSettings, *, continued: bool) -> dict[str, Any]:
    """All settings of a run, as `--recipe` reads them; a trained model's shape is its own."""
    shape = to_dict(system)
    shown = {name: shape[name] for name in system.tunable} if continued else {"name": system.name, **shape}
    return {"system": shown, "train": to_dict(train), "text": to_dict(text)}
