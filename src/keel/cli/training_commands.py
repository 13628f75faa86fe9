"""Commands of training: pretrain and finetune, and their recipes."""

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

from keel.api import finetuning, pretraining
from keel.api.finetuning_setup import FineTuningDefaults
from keel.api.settings import SWEPT, TextSettings, VocabularySettings
from keel.cli.command import Answer, command
from keel.cli.flags import Flags, Recipe
from keel.data.examples import Columns
from keel.data.label_kinds import SpanLabel, TagLabels, TextTarget
from keel.data.language_mix import split_language
from keel.data.text_files import file_kind
from keel.errors import KeelError, UsageError
from keel.events import pluralize
from keel.explain.layers.layer_weights import layer_weights
from keel.formats.bundled_models import locate
from keel.formats.huggingface import HUGGINGFACE_FOLDER, KEEL_FOLDER, folder_settings, recorded_optimizer
from keel.formats.registry import find_format
from keel.model import Model
from keel.report.console import Console, clock, score_line
from keel.systems import SYSTEMS
from keel.systems.bert import Bert
from keel.systems.capabilities import CausalLM, LanguageModelSystem, MaskedLM
from keel.systems.system import System, supports
from keel.tasks import TASKS
from keel.tasks.sequence_to_sequence import SequenceToSequence
from keel.training.loss_names import format_loss, name_loss
from keel.training.plan import Train

FILE_FLAGS = ("--dev", "--test")
"""Flags of finetune that take two parallel files for seq2seq."""


def _for_named_system(add_flags: Callable[..., None]) -> Callable[[Flags], None]:
    """Flags of the system that a line names; it is found by reading the line with the flags of all systems."""

    def add(flags: Flags) -> None:
        every = Flags(flags.verb, line=flags.line, add_help=False)
        others = (kind() for kind in SYSTEMS.values() if kind is not Bert)
        add_flags(every, Bert(), *others)  # the first one gives the defaults, whatever the order of SYSTEMS
        seen = every.peek()
        add_flags(flags, _named_system(seen), seen=seen)

    return add


def _named_system(seen: Namespace) -> System:
    """The system of a name, a recipe or a model; bert if none is named."""
    named = _what_to_train(seen)[0]
    if named in SYSTEMS:
        kind = SYSTEMS[named]
        return kind.sized(seen.size) if seen.size in kind.sizes else kind()
    found = find_format(named) if named else None
    if found in (KEEL_FOLDER, HUGGINGFACE_FOLDER):
        with suppress(KeelError):  # the run reports it
            return folder_settings(locate(named))
    return found.system(Path(named))() if found else Bert()


def _what_to_train(options: Namespace) -> tuple[str, Sequence[str], Recipe]:
    """The system or model, the files, and the recipe, which provides what the line does not."""
    recipe, words = Recipe.read(options.recipe) if options.recipe else Recipe(), options.words
    if words and (not recipe.system or words[0] in SYSTEMS or locate(words[0]).is_dir()):
        return words[0], words[1:] or recipe.corpus, recipe
    return recipe.system, words or recipe.corpus, recipe


def _with_recipe(options: Namespace, usage: str) -> tuple[str, Sequence[str], Namespace]:
    """What to train, on which files, and the options; flags override the recipe."""
    system, files, recipe = _what_to_train(options)
    if system in SYSTEMS and recipe.system not in ("", system):
        remedy = f"leave out {system}, or use another recipe"
        raise UsageError(f"{options.recipe} is for {recipe.system}, not for {system}: {remedy}")
    try:
        options.flags.read(recipe.flags)
    except UsageError as error:
        raise UsageError(f"{options.recipe}: {error}") from None
    merged = options.flags.read([*recipe.flags, *options.flags.line])
    if given := options.settings.keys() & set(Train.LENGTHS):  # --steps replaces the recipe's epochs, and so on
        for name in {*Train.LENGTHS} - given:
            merged.settings.pop(name, None)
    if merged.size:
        merged.settings["size"] = merged.size
    if not system or not files:
        raise UsageError(f"give {usage}")
    if not merged.out:
        raise UsageError("--out is missing: give the model folder to write")
    return system, files, merged


def _run_flags(flags: Flags, words: str, help: str, systems: Sequence[System]) -> None:
    flags.add_argument("words", nargs="*", metavar=words, help=help)
    flags.add_argument("--recipe", metavar="FILE.toml", help="Settings from a file; flags override them.")
    flags.add_argument("--out", metavar="DIR", help="The model folder to write.")
    sizes = ", ".join(systems[0].sizes)
    flags.add_argument("--size", "--system.size", help=f"Published size of a new model: {sizes or 'none'}.")
    flags.set_defaults(flags=flags)


@_for_named_system
def _pretrain_flags(flags: Flags, *systems: System, seen: Namespace | None = None) -> None:
    trained = [name for name, kind in SYSTEMS.items() if supports(kind(), "pretrain")]
    system = f"A system ({', '.join(trained)}), or a model folder to continue to pre-train"
    corpus = "then text: txt, csv, tsv, jsonl or parquet, plain or compressed; patterns; - for stdin."
    _run_flags(flags, "SYSTEM CORPUS", f"{system}; {corpus}", systems)
    flags.arguments(pretraining.pretrain, probe="FILE", probe_task="TASK")
    flags.section("train", systems[0].pretraining_defaults)
    flags.section("text", TextSettings())
    flags.section("system", *systems)


@command("train", "SYSTEM|FOLDER CORPUS... --out DIR", _pretrain_flags)
def pretrain(options: Namespace, console: Console) -> Answer:
    """Pre-train a system on raw text, or continue to pre-train a model."""
    usage = "a system and a corpus: keel pretrain bert corpus.txt --out models/mine"
    system, corpus, options = _with_recipe(options, usage)
    out = options.out
    files = corpus[0] if len(corpus) == 1 else list(map(Path, corpus))
    model = pretraining.pretrain(system, files, out=out, on_event=console, **options.settings)
    evaluations = _evaluations(Path(out))
    lines = [f"{out} is ready: {pluralize(model.card.steps, 'step')} in {clock(model.card.seconds)}"]
    if len(evaluations) > 1:
        best = model.card.recipe.get("train", {}).get("final_weights") == "best"
        final = min(evaluations, key=lambda event: event["loss"]) if best else evaluations[-1]
        first, last = (format_loss(event["loss"], event["losses"]) for event in (evaluations[0], final))
        lines.append(f"validation {name_loss(final['losses'])}: {first} -> {last}")
    probed = {"probe": model.card.scores["probe"]} if "probe" in model.card.scores else {}
    lines += [f"{name}: {score_line(scores)}" for name, scores in probed.items()]
    lines.append(f"next: keel {_first_use(model)} --model {quote(out)}")
    if model.encoder.width:
        lines.append(f"      keel finetune {quote(out)} TRAIN.tsv --task classify --out NEW_FOLDER")
    if isinstance(model.system, LanguageModelSystem):
        lines.append(f"      keel evaluate {quote(out)} TEXT.txt")
    data = {"model": out, "steps": model.card.steps, "seconds": model.card.seconds, "evaluations": evaluations}
    return Answer(sentences=True, lines=lines, data=data | probed)


def _first_use(model: Model) -> str:
    """A command to try a pre-trained model with."""
    if isinstance(model.objective, CausalLM):
        return 'generate "..."'
    if isinstance(model.objective, MaskedLM):
        return 'fill "... [MASK] ..."'
    if model.encoder.word_embeddings() is not None:
        return "nearest WORD"
    return 'nearest "..." --in FILE' if model.encoder.sparse else "senses WORD --in FILE"


def _evaluations(out: Path) -> list[dict[str, Any]]:
    """All validation losses of a run, also before it was resumed; only the main process has a log."""
    log = out / "run" / "log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    return [event for event in map(json.loads, lines) if event.get("event") == "evaluation"]


def finetune_flags(flags: Flags) -> None:
    flags.line = _join_parallel_files(flags.line)
    _finetune_flags(flags)


@_for_named_system
def _finetune_flags(flags: Flags, *systems: System, seen: Namespace | None = None) -> None:
    new = seen is not None and _what_to_train(seen)[0] in SYSTEMS
    if new and not (seen and seen.size):
        systems = (systems[0].from_scratch(), *systems[1:])
    defaults = _finetuning_defaults(systems[0], seen, trained=not new)
    model = f"A pre-trained model (folder or file), or a system to train from scratch ({', '.join(SYSTEMS)})"
    file = f"then labelled examples: tsv, csv, jsonl, parquet, fastText's; for {SequenceToSequence.name} a table or two"
    _run_flags(flags, "MODEL FILE", f"{model}; {file} parallel files; - for stdin.", systems)
    flags.add_argument(
        "--task",
        default="classify",
        metavar="|".join(TASKS),
        help="A label per text or pair of texts, a tag per word, a span that answers a question, multiple choice, or "
        "text to text. [classify]",
    )
    flags.arguments(finetuning.finetune, dev="FILE|10%|none", test="FILE", folds="K")
    # Evaluated at the end, or after every epoch (final_weights).
    flags.section("train", defaults.train, without=["evaluate_every"], rules=defaults.by_data_size)
    flags.lists = {f"train.{name}" for name in SWEPT}
    flags.section("columns", Columns())
    flags.section("head", defaults.head)
    flags.section("text", VocabularySettings())
    flags.section("system", *systems)


def _finetuning_defaults(system: System, seen: Namespace | None, *, trained: bool) -> FineTuningDefaults:
    """What the run does by default, given what the line says of task and head."""
    task = TASKS.get(seen.task, TASKS["classify"]) if seen else TASKS["classify"]
    given = {name.rpartition(".")[2]: value for name, value in vars(seen).items() if value is not None} if seen else {}
    freeze = {"true": True, "false": False}.get(given.pop("freeze", ""))
    kept = trained and given.get("from_scratch") != "true"
    optimizer = recorded_optimizer(locate(_what_to_train(seen)[0])) if seen and kept else ""
    return FineTuningDefaults.of(task, system, given, trained=kept, freeze=freeze, pretraining_optimizer=optimizer)


def _join_parallel_files(line: Sequence[str]) -> list[str]:
    """`--dev val.en val.de` as one argument, val.en,val.de, for seq2seq."""
    words = list(line)
    padded = [*words, ""]
    recipe = next((padded[n + 1] for n, word in enumerate(words) if word == "--recipe"), "")
    tasks = [flag for flag in (Recipe.read(recipe).flags if recipe else []) if flag.startswith("--task=")]
    tasks += [f"--task={padded[n + 1]}" for n, word in enumerate(words) if word == "--task"]
    if (tasks + [word for word in words if word.startswith("--task=")])[-1:] != [f"--task={SequenceToSequence.name}"]:
        return words
    for flag in FILE_FLAGS:
        if flag not in words:
            continue
        index = words.index(flag) + 1
        first, second = [*words[index:], "--", "--"][:2]
        whole = first == "none" or first.endswith("%") or comma_separated(first) or file_kind(Path(first)) != "txt"
        if not whole and not second.startswith("--"):
            words[index : index + 2] = [f"{first},{second}"]
    return words


@command("train", "MODEL FILE [FILE] --task TASK --out DIR", finetune_flags)
def finetune(options: Namespace, console: Console) -> Answer:
    """Fine-tune a model on labelled examples."""
    usage = "a model and labelled examples: keel finetune models/mine train.tsv --out new"
    model, files, options = _with_recipe(options, usage)
    data, out = labelled_source(files), options.out
    for name in ("dev", "test"):
        if options.task == SequenceToSequence.name and isinstance(options.settings.get(name), str):
            options.settings[name] = comma_separated(options.settings[name]) or options.settings[name]
        elif isinstance(given := options.settings.get(name), str) and split_language(given)[0]:
            options.settings[name] = [*map(Path, given.split(","))]
    tuned = finetuning.finetune(model, data, task=options.task, out=out, on_event=console, **options.settings)
    lines = [f"{out} is ready: {pluralize(tuned.card.steps, 'step')} in {clock(tuned.card.seconds)}"]
    single = {"dev": "dev (best seed)", "test": "test (that seed)"} if "dev_seeds" in tuned.card.scores else {}
    for name, scores in tuned.card.scores.items():
        lines.append(f"{single.get(name, name.replace('_', ' '))}: {score_line(scores)}")
    if tuned.task is not None and tuned.task.mix is not None:
        lines.append(f"scalar mix: {layer_weights(tuned).brief()}")
    kind = tuned.task.labels.kind if tuned.task else None
    generates = isinstance(kind, TextTarget)
    answers = isinstance(kind, SpanLabel)
    test = "TEST.conll" if isinstance(kind, TagLabels) else "TEST.json" if answers else "TEST.tsv"
    first = f"predict {quote(out)} {'NEW.json' if answers else 'NEW.txt'}"
    if generates:
        first, test = f'translate "..." --model {quote(out)}', "TEST.source TEST.target"
    lines += [f"next: keel {first}", f"      keel evaluate {quote(out)} {test}"]
    return Answer(sentences=True, lines=lines, data={"model": out, "scores": tuned.card.scores})


def labelled_source(files: Sequence[str]) -> str | Sequence[Path]:
    """One file, two parallel files, or files with their language before them."""
    if any(split_language(file)[0] for file in files):
        return [*map(Path, files)]
    if len(files) > 2:
        raise UsageError(f"{len(files)} files were given: give one or, for seq2seq, two parallel files")
    return comma_separated(files[0]) or files[0] if len(files) == 1 else tuple(map(Path, files))


def comma_separated(argument: str) -> tuple[Path, ...]:
    """Two parallel files in one argument, val.en,val.de; none if it is the name of one file."""
    names = argument.split(",")
    return tuple(map(Path, names)) if len(names) == 2 and not Path(argument).exists() else ()
