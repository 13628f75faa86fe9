"""The defaults that the help shows are those of a run without flags, for every system and task."""

from pathlib import Path
from typing import Any

import pytest

from keel.api.finetuning import finetune
from keel.api.finetuning_setup import FineTuningSetup
from keel.api.pretraining import _route
from keel.cli import load_command
from keel.cli.flags import Flags
from keel.config import to_dict
from keel.data.corpus import Corpus
from keel.data.tokenizer_training import TokenizerSettings, train_tokenizer
from keel.events import ignore
from keel.model import Model
from keel.model_card import Card
from keel.systems import SYSTEMS
from keel.systems.bert import Bert
from keel.systems.system import supports
from keel.tasks import TASKS

PAIRS = [(name, task) for name, kind in SYSTEMS.items() for task in TASKS if supports(kind().from_scratch(), task)]
DERIVED = {"evaluate_every"}
"""Settings without a flag in finetune."""


def flags_of(*line: str) -> Flags:
    verb, *rest = line
    return load_command(verb).flags(verb, rest)


def displayed_default(flags: Flags, section: str) -> dict[str, Any]:
    start = f"{section}."
    return {place.removeprefix(start): value for place, value in flags.defaults.items() if place.startswith(start)}


@pytest.mark.parametrize(("name", "task"), PAIRS)
def test_finetune_does_what_its_help_shows(name: str, task: str) -> None:
    flags = flags_of("finetune", name, "x.tsv", "--task", task)
    setup = FineTuningSetup.resolve(name, None, task, None, False, {}, ignore)
    rules = setup.system.finetuning_policy.by_data_size if setup.depends_on_size else {}
    stored = {key: value for key, value in vars(setup.train).items() if key not in DERIVED}
    assert displayed_default(flags, "train") == stored | rules
    assert displayed_default(flags, "head") == vars(setup.head)
    assert displayed_default(flags, "system") == vars(setup.system)
    assert displayed_default(flags, "text") == vars(setup.text)


@pytest.mark.parametrize("name", [name for name, kind in SYSTEMS.items() if supports(kind(), "pretrain")])
def test_pretrain_does_what_its_help_shows(name: str) -> None:
    flags = flags_of("pretrain", name, "x.txt")
    system, train, _ = _route(SYSTEMS[name](), None, {}, ignore)
    assert displayed_default(flags, "system") == vars(system)
    assert displayed_default(flags, "train") == vars(train)


def test_the_help_of_a_folder_shows_its_settings(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(Corpus.of(["the sea and the boat"]), TokenizerSettings(vocab_size=60))
    system = Bert(layers=1, width=64)
    Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer).save(tmp_path / "m")
    flags = flags_of("finetune", str(tmp_path / "m"), "x.tsv")
    assert displayed_default(flags, "system")["width"] == 64
    assert displayed_default(flags, "train")["lr"] == pytest.approx(5e-5 * 768 / 64)
    solved = displayed_default(flags_of("finetune", str(tmp_path / "m"), "x.tsv", "--freeze"), "train")
    assert (solved["optimizer"], solved["epochs"]) == ("own", 1)
    frozen = flags_of("finetune", str(tmp_path / "m"), "x.tsv", "--freeze", "--lr", "1e-2")
    assert displayed_default(frozen, "train")["epochs"] == 20


@pytest.mark.parametrize("optimizer", ["", "adamw", "muon"])
def test_the_help_of_a_folder_follows_the_optimizer_of_its_pretraining(tmp_path: Path, optimizer: str) -> None:
    tokenizer = train_tokenizer(Corpus.of(["the sea and the boat"]), TokenizerSettings(vocab_size=60))
    system, card = Bert(layers=1, width=64), Card(recipe={"train": {"optimizer": optimizer}} if optimizer else {})
    encoder, folder = system.build_encoder(len(tokenizer)), tmp_path / "m"
    Model(system=system, encoder=encoder, tokenizer=tokenizer, card=card).save(folder)
    setup = FineTuningSetup.resolve(folder, None, "classify", None, False, {}, ignore)
    stored = {key: value for key, value in vars(setup.train).items() if key not in DERIVED}
    shown = displayed_default(flags_of("finetune", str(folder), "x.tsv"), "train")
    assert shown == stored | setup.system.finetuning_policy.by_data_size
    assert shown["optimizer"] == (optimizer or "adamw")


def test_a_run_without_flags_stores_what_the_help_shows(tmp_path: Path) -> None:
    finetune("onehot", [("good fine", "a"), ("bad sad", "b")] * 10, out=tmp_path / "m")
    model, flags = Model.load(tmp_path / "m"), flags_of("finetune", "onehot", "x.tsv")
    train = {key: value for key, value in model.card.recipe["train"].items() if key not in DERIVED}
    assert train == displayed_default(flags, "train")
    assert to_dict(model.system) | {"ngrams": 0} == displayed_default(flags, "system")


def test_the_help_shows_the_choices_that_a_system_takes() -> None:
    shown = flags_of("pretrain", "electra", "x.txt").format_help()
    assert "--system.pair_objective none|segments " in " ".join(shown.split())
    assert "variant" not in shown + flags_of("finetune", "bert", "x.tsv").format_help()


def test_the_help_shows_that_a_threshold_may_be_a_number() -> None:
    assert "--threshold auto|X " in flags_of("finetune", "cnn", "x.tsv").format_help()
    assert "--separator " in flags_of("pretrain", "bert", "x.csv").format_help()
