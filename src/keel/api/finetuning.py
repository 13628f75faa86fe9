"""Fine-tuning on labelled examples: `finetune` is the whole path from a labelled file to a model folder."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Unpack

from keel.api.finetuning_runs import FineTuningRuns
from keel.api.finetuning_setup import FineTuningSetup, LabelledData
from keel.api.keywords import FinetuneKeywords
from keel.api.progress import repeating_command, shows_progress
from keel.api.run_folder import hardware, run_folder
from keel.api.settings import OVERWRITE, Source, VocabularySettings, merge_settings
from keel.api.starting_point import save_model
from keel.api.sweeps import Sweep
from keel.config import Doc, Ge, enforces_bounds, replace, to_dict
from keel.data.examples import Columns
from keel.errors import UsageError
from keel.events import OnEvent, ignore
from keel.model import Model
from keel.model_card import Card
from keel.systems.system import System
from keel.tasks.head_settings import HeadSettings
from keel.training.distributed import World
from keel.training.loop import thread_limit
from keel.training.plan import Train

__all__ = ["finetune"]

CLEAN = "Merge labels that differ by case, spaces or .0 (1 and 1.0); drop empty and duplicate rows."
DEV = (
    "Validation examples: a file, a share of the training examples, or none; auto: 10%, but none where onehot, "
    "or the classifier on a frozen encoder, is cross-validated (single-label data of fewer than 20,000 texts, no "
    "--system.l2, one seed)."
)
FREEZE = (
    "Freeze the encoder and train the head alone. A linear classifier of its vectors is solved for (L2 strength by "
    "cross-validation) unless --epochs, --lr or another setting of gradient descent is given."
)


@shows_progress
@enforces_bounds
def finetune(
    base: Model | System | str | Path,
    data: Source,
    *,
    task: str = "classify",
    out: str | Path | None = None,
    dev: Annotated[Source, Doc(DEV)] = "auto",
    test: Annotated[Source | None, Doc("Test examples, scored at the end of each run.")] = None,
    clean: Annotated[bool, Doc(CLEAN)] = False,
    folds: Annotated[int, Doc("Cross-validation with K folds; 0: none.")] = 0,
    seeds: Annotated[
        int,
        Doc("Runs with different random seeds; the best on dev is saved, mean and standard deviation are reported."),
    ] = 1,
    select_by: Annotated[
        str,
        Doc(
            "Score on dev that chooses the best seed or setting, such as matthews or binary_f1; default: the main one."
        ),
    ] = "",
    sweep_minutes: Annotated[
        float,
        Ge(0),
        Doc("Time limit of a sweep (lists for --lr, --epochs, --batch: the best on dev is chosen); 0: none."),
    ] = 0.0,
    freeze: Annotated[bool | None, Doc(FREEZE)] = None,
    from_scratch: Annotated[bool, Doc("Random initialisation, to measure the benefit of pre-training.")] = False,
    overwrite: Annotated[bool, OVERWRITE] = False,
    train: Train | None = None,
    columns: Columns | None = None,
    head: HeadSettings | None = None,
    text: VocabularySettings | None = None,
    progress: bool = True,
    on_event: OnEvent = ignore,
    **settings: Unpack[FinetuneKeywords],
) -> Model:
    """Fine-tune a model on labelled examples; its scores are in the model card. Rerun the same call to resume.

    `base` is a Model, its folder, a System or its name; a new system is trained on the examples alone. `dev` is a
    dataset, a share of `data` such as "10%", None, or "auto". With several `seeds` the best run on dev is returned;
    `folds` adds cross-validation. Lists for `lr`, `epochs` and `batch` are a sweep: all combinations are trained
    with the first seed, within `sweep_minutes`, and the best on dev is used. `freeze` trains the head alone (default:
    as the system's paper does), and solves for a linear one unless settings of gradient descent such as `epochs` are
    given. Settings are objects (`train=keel.Train(epochs=3)`) or single fields of them (`epochs=3`), or fields of the
    system: all of a new one, those that keep the shape of a trained one; what is not given is the default of system
    and task. Progress is shown unless `progress` is False or `on_event` is given.
    """
    if seeds < 1:
        raise UsageError(f"--seeds must be 1 or more, not {seeds}")
    values = merge_settings(settings, train=train, columns=columns, head=head, text=text)
    sweep = Sweep.take_from(values, sweep_minutes)
    setup = FineTuningSetup.resolve(base, out, task, freeze, from_scratch, values, on_event)
    plan = setup.train
    default_dev = partial(setup.default_dev, runs=seeds * len(sweep.candidates))
    examples = LabelledData.read(
        setup.task,
        setup.columns,
        data,
        default_dev if isinstance(dev, str) and dev == "auto" else dev,
        test,
        folds=bool(folds),
        clean=clean,
        seed=plan.seed,
        on_event=on_event,
    )
    if examples.dev is None and (flags := setup.head.tuned_on_dev):
        raise UsageError(f"{flags[0]} is tuned on validation examples, and there are none: give --dev, or leave it out")
    setup = setup.fit_to_examples(examples.train)
    plan = setup.train
    with (
        thread_limit(plan.threads),
        World.join(plan.device) as world,
        run_folder(out, "finetune", overwrite, world, on_event) as (run, report),
    ):
        largest = examples.everything if folds else None
        start, labels = setup.starting_model(examples.train, examples.labels, report, largest=largest)
        scores: dict[str, Any] = {}
        runs, first = sweep.run(
            FineTuningRuns(setup, start, labels, report, select_by), examples.train, examples.dev, run
        )
        plan = runs.setup.train
        if folds:
            scores["folds"] = runs.cross_validate(examples.everything, folds, run)
        best = runs.best_of(seeds, examples.train, examples.dev, examples.test, run, scores, first)
        card = Card(
            command=repeating_command(),
            title=Path(out).name if out else "",
            parent=start.card.title,
            text=f"{len(examples.train):,} examples of {Path(examples.train.source).name}",
            steps=best.history.steps,
            seconds=best.history.seconds,
            hardware=hardware(world.device, best.history),
            scores=scores,
            data_fingerprint=examples.everything.fingerprint(),
            recipe={**setup.recipe, "train": to_dict(replace(plan, lr=best.lr))},
        )
        tuned = best.task
        model = Model(
            system=tuned.system,
            encoder=tuned.encoder,
            tokenizer=start.tokenizer,
            task=tuned,
            card=card,
            sentence_pooling=start.sentence_pooling,
        )
        return save_model(model.to(world.device), out, world)
