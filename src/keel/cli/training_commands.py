"""The commands that teach: pretrain and finetune, and the recipes they take."""

import contextlib
import json
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from keel.api import finetuning, pretraining
from keel.api.settings import TextSettings, VocabularySettings
from keel.cli.command_output import Answer
from keel.cli.console import Console, clock, losses, score_line
from keel.cli.flags import Flags, Recipe
from keel.data.examples import Columns
from keel.data.label_kinds import TagLabels, TextTarget
from keel.data.parallel_text import two_files
from keel.data.text_files import file_kind
from keel.errors import UsageError
from keel.events import counted
from keel.explain.layer_weights import layer_weights
from keel.formats.elmo_files import is_elmo
from keel.formats.fasttext_files import is_fasttext
from keel.generation.next_token import NextTokenModel
from keel.model import Model
from keel.systems import SYSTEMS
from keel.systems.elmo import Elmo
from keel.systems.fasttext import FastText
from keel.systems.system import System
from keel.tasks import TASKS
from keel.tasks.task import HeadSettings
from keel.training.plan import Train


def _of_named_system(add_flags: Callable[..., None]) -> Callable[[Flags], None]:
    """Flags of the one system that a line names; where it does shows when it is read with the flags of all."""

    def add(flags: Flags) -> None:
        every = Flags(flags.verb, line=flags.line, add_help=False)
        add_flags(every, *(kind() for kind in SYSTEMS.values()))
        add_flags(flags, _named_system(every.glance()))

    return add


def _named_system(seen: Namespace) -> System:
    """The system that is named by itself, in a recipe or by a model folder; the youngest if none is."""
    named = _what_to_train(seen)[0] if "words" in seen else seen.model or ""
    if is_fasttext(named):
        return FastText()
    if is_elmo(named):
        return Elmo()
    with contextlib.suppress(OSError, ValueError, AttributeError):  # what is wrong with a folder is said by its reader
        config = json.loads((Path(named) / "config.json").read_text(encoding="utf-8"))
        named = config.get("keel", {}).get("system") or config.get("model_type")
    return SYSTEMS.get(str(named), [*SYSTEMS.values()][-1])()


def _what_to_train(options: Namespace) -> tuple[str, Sequence[str], Recipe]:
    """The system or folder, the corpus, and the recipe, which says what the line does not."""
    recipe, words = Recipe.read(options.recipe) if options.recipe else Recipe(), options.words
    if words and (not recipe.system or words[0] in SYSTEMS or Path(words[0]).is_dir()):
        return words[0], words[1:] or recipe.corpus, recipe
    return recipe.system, words or recipe.corpus, recipe


def _with_recipe(options: Namespace) -> tuple[str, Sequence[str], Namespace]:
    """What is to learn, from which files, and the options; flags override what the recipe says."""
    system, files, recipe = _what_to_train(options)
    if system in SYSTEMS and recipe.system not in ("", system):
        remedy = f"leave out {system}, or take another recipe"
        raise UsageError(f"{options.recipe} is for {recipe.system}, not for {system}: {remedy}")
    try:
        options.flags.read(recipe.flags)
    except UsageError as error:
        raise UsageError(f"{options.recipe}: {error}") from None
    merged = options.flags.read([*recipe.flags, *options.flags.line])
    if said := options.settings.keys() & set(Train.LENGTHS):  # one way to say how long replaces another
        for name in {*Train.LENGTHS} - said:
            merged.settings.pop(name, None)
    if merged.size:
        merged.settings = {"size": merged.size, **merged.settings}
    merged.quiet |= options.quiet
    return system, files, merged


@_of_named_system
def pretrain_flags(flags: Flags, *systems: System) -> None:
    what = f"what to train ({', '.join(SYSTEMS)}, or a model folder to go on with), then text files, patterns or -"
    flags.add_argument("words", nargs="*", metavar="SYSTEM|FOLDER CORPUS", help=what)
    flags.add_argument("--out", metavar="DIR", help="the model folder; the same command again goes on where it stopped")
    flags.add_argument("--recipe", metavar="FILE.toml", help="settings from a file; flags override them")
    flags.add_argument(
        "--probe", metavar="FILE", help="labelled examples: fine-tune a copy at the end and say its scores"
    )
    flags.add_argument("--probe-task", default="classify", metavar="|".join(TASKS), help="of the probe [classify]")
    flags.add_argument("--size", "--system.size", help=f"a published shape: {', '.join(systems[0].sizes)}")
    flags.add_argument("--overwrite", action="store_true", help="replace the model and the run in DIR")
    flags.section("train", systems[0].pretraining_defaults)
    flags.section("text", TextSettings())
    flags.section("system", *systems)
    flags.set_defaults(flags=flags)


def pretrain(options: Namespace) -> Answer:
    system, corpus, options = _with_recipe(options)
    if not system or not corpus:
        raise UsageError("say what to train, and on which text: keel pretrain bert corpus.txt --out models/mine")
    if not (out := options.out):
        raise UsageError("--out is missing: name the model folder to write")
    with Console(quiet=options.quiet) as console:
        model = pretraining.pretrain(
            system,
            tuple(corpus),  # files, and never texts, whatever they are called
            out=out,
            probe=options.probe,
            probe_task=options.probe_task,
            overwrite=options.overwrite,
            on_event=console,
            **options.settings,
        )
    evaluations = _evaluations(Path(out))
    lines = [f"{out} is ready: {counted(model.card.steps, 'step')} in {clock(model.card.seconds)}"]
    if len(evaluations) > 1:
        lines.append(f"validation {losses(evaluations[0])} -> {losses(evaluations[-1])}")
    probed = {"probe": model.card.scores["probe"]} if "probe" in model.card.scores else {}
    lines += [f"{name}: {score_line(scores)}" for name, scores in probed.items()]
    lines.append(f"next: keel {_first_use(model)} --model {quote(out)}")
    if model.encoder.width:
        lines.append(f"      keel finetune {quote(out)} TRAIN.tsv --task classify --out NEW_FOLDER")
    if model.system.is_causal_lm:
        lines.append(f"      keel evaluate {quote(out)} TEXT.txt")
    data = {"model": out, "steps": model.card.steps, "seconds": model.card.seconds, "evaluations": evaluations}
    return Answer(lines=lines, data=data | probed)


def _first_use(model: Model) -> str:
    """What a model that has just learned from text can be asked."""
    if isinstance(model.objective, NextTokenModel):
        return 'generate "..."'
    if hasattr(model.objective, "predict_masked"):
        return 'fill "... [MASK] ..."'
    if model.encoder.word_embeddings() is not None:
        return "nearest WORD"
    return 'nearest "..." --in FILE' if model.encoder.sparse else "senses WORD --in FILE"


def _evaluations(out: Path) -> list[dict[str, Any]]:
    """All held-out evaluations of a run, those before it was taken up again too; only the leading process has a log."""
    log = out / "run" / "log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    return [event for event in map(json.loads, lines) if event.get("event") == "evaluation"]


def finetune_flags(flags: Flags) -> None:
    flags.line = _joined(flags.line)
    _tuning_flags(flags)


@_of_named_system
def _tuning_flags(flags: Flags, *systems: System) -> None:
    model = f"a pre-trained model: its folder or file; or a system ({', '.join(SYSTEMS)}) that has learned nothing yet"
    file = "labelled examples: tsv, csv, jsonl, parquet, fastText's; for seq2seq a table or two files, line by line; -"
    flags.add_argument("words", nargs="*", metavar="MODEL FILE", help=f"{model}; then {file}")
    flags.add_argument("--recipe", metavar="FILE.toml", help="settings from a file; flags override them")
    flags.add_argument(
        "--task",
        default="classify",
        metavar="|".join(TASKS),
        help="a label for a text, or two; a tag for each word; one of several choices; another text [classify]",
    )
    flags.add_argument("--out", metavar="DIR", help="the model folder to write")
    flags.add_argument(
        "--dev",
        default="10%",
        metavar="FILE|10%|none",
        help="what to score the trained model on; for seq2seq a table, or two files like FILE [10%%]",
    )
    flags.add_argument("--test", metavar="FILE", help="examples to score once, at the end; like --dev")
    flags.add_argument(
        "--size", "--system.size", help=f"of a new model, a published shape: {', '.join(systems[0].sizes)}"
    )
    flags.add_argument(
        "--folds", type=int, default=0, metavar="K", help="also score every example by a model that never saw it"
    )
    flags.add_argument("--seeds", type=int, default=1, metavar="N", help="runs, of which the best on dev is kept [1]")
    flags.add_argument(
        "--freeze", action=BooleanOptionalAction, help="leave the encoder as it is and teach the head alone"
    )
    flags.add_argument(
        "--from-scratch", action="store_true", help="forget the weights, to see what pre-training brings"
    )
    flags.add_argument("--overwrite", action="store_true", help="replace the model and the run in DIR")
    flags.section(
        "train", systems[0].finetuning_defaults(False), without=["evaluate_every"]
    )  # there is none before the end
    flags.section("columns", Columns())
    flags.section("head", HeadSettings())
    flags.section("pieces", VocabularySettings())
    flags.section("system", *systems, without=["label_counts", "shared_vocabulary"])
    flags.set_defaults(flags=flags)


def _joined(line: Sequence[str]) -> list[str]:
    """`--dev val.en val.de` as one argument, val.en,val.de: two files side by side are what seq2seq scores on."""
    words = list(line)
    said = [*words, ""]
    recipe = next((said[n + 1] for n, word in enumerate(words) if word == "--recipe"), "")
    tasks = [flag for flag in (Recipe.read(recipe).flags if recipe else []) if flag.startswith("--task=")]
    tasks += [f"--task={said[n + 1]}" for n, word in enumerate(words) if word == "--task"]
    if (tasks + [word for word in words if word.startswith("--task=")])[-1:] != ["--task=seq2seq"]:
        return words
    for flag in ("--dev", "--test"):
        if flag not in words:
            continue
        place = words.index(flag) + 1
        first, second = [*words[place:], "--", "--"][:2]
        whole = first == "none" or first.endswith("%") or two_files(first) or file_kind(Path(first)) != "txt"
        if not whole and not second.startswith("--"):
            words[place : place + 2] = [f"{first},{second}"]
    return words


def finetune(options: Namespace) -> Answer:
    model, files, options = _with_recipe(options)
    if not model or not files:
        raise UsageError("say what is to learn, and from which examples: keel finetune models/mine train.tsv --out new")
    if not options.out:
        raise UsageError("--out is missing: name the model folder to write")
    with Console(quiet=options.quiet) as console:
        tuned = finetuning.finetune(
            model,
            source_of(files),
            task=options.task,
            out=options.out,
            dev=options.dev,
            test=options.test,
            folds=options.folds,
            seeds=options.seeds,
            freeze=options.freeze,
            from_scratch=options.from_scratch,
            overwrite=options.overwrite,
            on_event=console,
            **options.settings,
        )
    lines = [f"{options.out} is ready: {counted(tuned.card.steps, 'step')} in {clock(tuned.card.seconds)}"]
    lines += [f"{name}: {score_line(scores)}" for name, scores in tuned.card.scores.items()]
    if tuned.task is not None and tuned.task.mix is not None:
        lines.append(f"mix: {layer_weights(tuned).brief()}")
    writes = tuned.task is not None and isinstance(tuned.task.labels.kind, TextTarget)
    tags = tuned.task is not None and isinstance(tuned.task.labels.kind, TagLabels)
    test = "TEST.source TEST.target" if writes else "TEST.conll" if tags else "TEST.tsv"
    first = f'translate "..." --model {quote(options.out)}' if writes else f"predict {quote(options.out)} NEW.txt"
    lines.append(f"next: keel {first}")
    lines.append(f"      keel evaluate {quote(options.out)} {test}")
    return Answer(lines=lines, data={"model": options.out, "scores": tuned.card.scores})


def source_of(files: Sequence[str]) -> Any:
    """One file, or two side by side."""
    if len(files) > 2:
        raise UsageError(f"there are {len(files)} files: give one or, for seq2seq, two side by side")
    return files[0] if len(files) == 1 else tuple(map(Path, files))
