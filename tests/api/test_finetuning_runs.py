"""Fine-tuning by groups of layers, the same for every system."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keel.api.evaluation import evaluate
from keel.api.finetuning import finetune
from keel.data.corpus import Corpus
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.events import Event
from keel.explain.layers.layer_weights import layer_weights
from keel.model import Model
from keel.systems.bert import Bert
from keel.systems.elmo import Elmo
from keel.systems.rnn import Rnn
from keel.systems.system import System
from keel.systems.ulmfit import Ulmfit
from keel.systems.word2vec import Word2vec

EXAMPLES = [("a fine boat", "good"), ("a dull boat", "bad"), ("fine bread", "good"), ("dull bread", "bad")] * 2
SYSTEMS: list[tuple[System, int]] = [
    (Bert(layers=2, width=32, head_dim=16, max_positions=16, sequence_length=16), 4),
    (Word2vec(width=8), 2),
    (Rnn(width=8, layers=2), 4),
    (Rnn(width=8, layers=2, bidirectional=True), 4),
    (Ulmfit(width=8, hidden_size=12, layers=3), 5),
    (Elmo(width=8, cell_size=12, character_filters=(4, 3), character_dim=4, highway_layers=1), 4),
]
"""And how many levels each has: the head, the blocks, the words."""
SETTINGS: dict[str, Any] = {"dev": None, "batch": 4, "lr": 0.1, "device": "cpu", "schedule": "slanted"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(Corpus.of([text for text, _ in EXAMPLES]), kind="words", size=50)


def untrained(system: System, tokenizer: Tokenizer) -> Model:
    torch.manual_seed(0)
    return Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer)


def level_of(model: Model, name: str) -> int:
    """From the top: 0 is what belongs to the head."""
    weight = model.encoder.get_parameter(name)
    if any(weight is other for other in model.encoder.pooler_parameters()):
        return 0
    for number, block in enumerate(reversed(model.encoder.blocks()), 1):
        if any(weight is other for other in block.parameters()):
            return number
    return len(model.encoder.blocks()) + 1


@pytest.mark.parametrize(("system", "levels"), SYSTEMS, ids=[system.name for system, _ in SYSTEMS])
def test_one_level_more_learns_each_epoch(system: System, levels: int, tokenizer: Tokenizer) -> None:
    base = untrained(system, tokenizer)
    for epochs in range(1, levels + 2):
        events: list[Event] = []
        tuned = finetune(base, EXAMPLES, epochs=epochs, unfreeze="gradual", on_event=events.append, **SETTINGS)
        moved = {
            level_of(base, name)
            for name, value in base.encoder.named_parameters()
            if not torch.equal(value, tuned.encoder.get_parameter(name))
        }
        assert moved - {0} == set(range(1, min(epochs, levels)))
        notes_found = [event["text"] for event in events if "layer groups" in event.get("text", "")]
        if epochs < levels:
            early = f"this run unfreezes only {epochs} of {levels} layer groups: "
            assert notes_found.pop(0) == early + f"to train all of them, use epochs={levels} or more"
        assert notes_found == [
            f"step {2 * n - 2}: {n} of {levels} layer groups are trained" for n in range(1, min(epochs, levels) + 1)
        ]


@pytest.mark.parametrize(("system", "levels"), SYSTEMS, ids=[system.name for system, _ in SYSTEMS])
def test_lower_levels_take_smaller_steps(system: System, levels: int, tokenizer: Tokenizer) -> None:
    """The first step of AdamW is as long as its learning rate, whatever the gradient."""
    base = untrained(system, tokenizer)
    settings = {**SETTINGS, "schedule": "constant", "lr": 0.01, "weight_decay": 0.0, "warmup": 0.0}
    tuned = finetune(base, EXAMPLES, steps=1, layer_decay=0.5, unfreeze="none", epsilon=1e-12, **settings)
    for name, value in base.encoder.named_parameters():
        steps = (tuned.encoder.get_parameter(name) - value).detach().abs()
        if steps.any():
            assert float(steps.max()) == pytest.approx(0.01 * 0.5 ** level_of(base, name), rel=0.05), name


@pytest.mark.parametrize("settings", [{}, {"freeze": False}, {"unfreeze": "gradual"}, {"from_scratch": True}])
def test_elmo_mixes_its_layers_whether_it_learns_or_not(settings: dict[str, Any], tokenizer: Tokenizer) -> None:
    base = untrained(SYSTEMS[-1][0], tokenizer)
    tuned = finetune(base, EXAMPLES, epochs=1, **SETTINGS, **settings)
    assert len(layer_weights(tuned).weights) == 3
    notes_found = finetune(base, EXAMPLES, epochs=1, mix=False, **SETTINGS, **settings)
    assert notes_found.task is not None
    assert notes_found.task.mix is None


def test_a_frozen_encoder_has_no_levels_to_unfreeze(tokenizer: Tokenizer) -> None:
    base = untrained(Word2vec(width=8), tokenizer)
    with pytest.raises(UsageError, match="at least two layer groups"):
        finetune(base, EXAMPLES, freeze=True, epochs=1, unfreeze="gradual", **SETTINGS)


@pytest.mark.parametrize("settings", [{"layer_decay": 0.5}, {"unfreeze": "gradual"}])
def test_what_makes_updates_of_its_own_has_no_levels(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="custom updates"):
        finetune("fasttext", EXAMPLES, epochs=1, buckets=100, **SETTINGS, **settings)


@pytest.mark.gpu
@pytest.mark.parametrize(("system", "levels"), SYSTEMS, ids=[system.name for system, _ in SYSTEMS])
def test_graphs_are_captured_again_when_a_group_is_unfrozen(system: System, levels: int, tokenizer: Tokenizer) -> None:
    base = untrained(system, tokenizer)
    settings = {**SETTINGS, "device": "cuda", "lr": 0.01}
    for epochs in (1, 2, levels):  # ten steps each, of which most are replayed
        tuned = finetune(base, EXAMPLES * 5, epochs=epochs, unfreeze="gradual", **settings)
        moved = {
            level_of(base, name)
            for name, value in base.encoder.named_parameters()
            if not torch.equal(value, tuned.encoder.get_parameter(name).cpu())
        }
        assert moved - {0} == set(range(1, epochs))


def notes(base: Any, examples: list[Any], **settings: Any) -> tuple[Model, list[str]]:
    events: list[Event] = []
    model = finetune(base, examples, device="cpu", on_event=events.append, **settings)
    return model, [event["text"] for event in events if event["event"] == "note"]


def test_a_run_of_few_updates_gets_a_note_with_the_remedy(tokenizer: Tokenizer) -> None:
    base = untrained(Word2vec(width=8), tokenizer)
    few = {"dev": None, "freeze": False}
    wanted = "the run made only 3 updates: try epochs=30"
    assert wanted in notes(base, EXAMPLES, epochs=3, batch=8, **few)[1]
    many = EXAMPLES * 40
    wanted = "the run made only 10 updates: try epochs=6 or batch=16"
    assert wanted in notes(base, many, epochs=2, batch=64, **few)[1]
    for enough in ({"epochs": 6, "batch": 64}, {"epochs": 2, "batch": 16}, {"steps": 3}):
        assert not [text for text in notes(base, many, **enough, **few)[1] if "update" in text]
    wanted = "the run made only 40 updates: try epochs=100 or a higher lr"
    assert wanted in notes("fasttext", EXAMPLES, dev=None, buckets=10, epochs=5)[1]
    wanted = "the run made only 1 update: try epochs=100 or a higher lr"
    assert wanted in notes("fasttext", EXAMPLES, dev=None, buckets=10, epochs=0.01)[1]


def test_a_constant_prediction_gets_a_warning() -> None:
    examples = [("a boat", "good")] * 30 + [("a boat", "bad")] * 12
    wanted = "the model predicts 'good' for all 42 examples: try more epochs, another lr"
    model, notes_sent = notes("fasttext", examples, dev=examples, buckets=10)
    assert any(text.startswith(f"on dev {wanted}") for text in notes_sent)
    texts: list[str] = []
    evaluate(model, examples, on_event=lambda event: texts.append(event.get("text", "")))
    assert any(text.startswith(wanted) for text in texts)
    texts.clear()
    evaluate(model, examples[:30], on_event=lambda event: texts.append(event.get("text", "")))
    assert not any("the model predicts" in text for text in texts)  # they have one class alone
    unlike = EXAMPLES * 2
    assert not any(
        "the model predicts" in text for text in notes("fasttext", unlike, dev=unlike, buckets=10, epochs=99)[1]
    )


def test_a_constant_tag_gets_a_warning() -> None:
    sentences = [(["boat", "boat", "boat"], ["B-PER", "O", "O"])] * 14
    wanted = "the model predicts 'O' for all 42 words: try more epochs, another lr"
    _, notes_sent = notes(Word2vec(width=8), sentences, task="tag", dev=sentences, epochs=9, lr=0.1, batch=4)
    assert any(text.startswith(f"on dev {wanted}") for text in notes_sent)
    sentences = [(["boat", "boat", "boat"], ["O", "B-LOC", "B-LOC"])] * 14
    wanted = "the model predicts that all 42 words are part of 'LOC': try more epochs"
    _, notes_sent = notes(Word2vec(width=8), sentences, task="tag", dev=sentences, epochs=9, lr=0.1, batch=4)
    assert any(text.startswith(f"on dev {wanted}") for text in notes_sent)


def test_several_seeds_are_averaged_on_dev_and_on_test(tokenizer: Tokenizer) -> None:
    base, events = untrained(SYSTEMS[0][0], tokenizer), []
    settings: dict[str, Any] = {**SETTINGS, "dev": EXAMPLES, "test": EXAMPLES[:5], "lr": 0.01, "steps": 2}
    tuned = finetune(base, EXAMPLES, seeds=3, on_event=events.append, **settings)
    scores = tuned.card.scores
    assert list(scores) == ["dev", "test", "dev_seeds", "test_seeds"]
    for name in ("dev", "test"):
        each = [event for event in events if event["event"] == "scores" and event["on"] == name]
        assert [(event["seed"], event["runs"]) for event in each] == [(0, 3), (1, 3), (2, 3)]
        mean = scores[f"{name}_seeds"]
        assert mean["values"] == [event["values"]["accuracy"]["value"] for event in each]
        assert mean["mean"] == pytest.approx(np.mean(mean["values"]))
        assert mean["std"] == pytest.approx(np.std(mean["values"], ddof=1))
        assert scores[name]["values"]["accuracy"]["value"] in mean["values"]
    one = finetune(base, EXAMPLES, **settings).card.scores
    assert list(one) == ["dev", "test"]


def test_defaults_follow_the_optimizer_of_pretraining_and_the_number_of_examples(tokenizer: Tokenizer) -> None:
    base = untrained(SYSTEMS[0][0], tokenizer)
    few = {"dev": None, "device": "cpu", "progress": False}
    tuned = finetune(base, EXAMPLES, **few).card.recipe["train"]
    assert (tuned["optimizer"], tuned["epochs"], tuned["layer_decay"]) == ("adamw", 312, 0.9)
    base.card.recipe["train"] = {"optimizer": "muon"}
    tuned = finetune(base, EXAMPLES, **few).card.recipe["train"]
    assert (tuned["optimizer"], tuned["lr"], tuned["epochs"], tuned["layer_decay"]) == ("muon", 2e-4, 312, 0.9)
    tuned = finetune(base, EXAMPLES, optimizer="adamw", epochs=1, **few).card.recipe["train"]
    assert (tuned["optimizer"], tuned["lr"], tuned["epochs"]) == ("adamw", 5e-5, 1)
    tuned = finetune(base, EXAMPLES, from_scratch=True, **few).card.recipe["train"]
    assert (tuned["optimizer"], tuned["epochs"], tuned["layer_decay"]) == ("adamw", 3, 1.0)


@pytest.mark.parametrize(
    ("examples", "epochs"), [(10, 250), (250, 10), (6_000, 10), (10_000, 6), (20_000, 3), (1_000_000, 3)]
)
def test_small_sets_get_more_epochs(examples: int, epochs: int) -> None:
    assert Bert().finetuning_policy.fit_to_size(examples) == {"epochs": epochs}


def test_a_collapsed_run_is_repeated_with_another_seed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    base = untrained(SYSTEMS[0][0], tokenizer)
    settings: dict[str, Any] = {"dev": None, "device": "cpu", "log_every": 1, "batch": 8}
    events: list[Event] = []
    random = [(text, label) for text, _ in EXAMPLES for label in ("good", "bad")]  # nothing can be learned
    finetune(base, random, out=tmp_path / "random", epochs=50, lr=1e-3, on_event=events.append, **settings)
    notes = [event["text"] for event in events if "collapsed" in event.get("text", "")]
    assert notes == [
        "the run of seed 0 has collapsed: it has learned how frequent the labels are, and nothing else; it is repeated "
        "with seed 1000",
        "the run of seed 1000 has collapsed too: lower lr",
    ]
    assert {path.name for path in (tmp_path / "random" / "run").glob("seed-*")} == {"seed-0", "seed-1000"}
    events.clear()
    finetune(base, EXAMPLES, epochs=120, lr=3e-3, on_event=events.append, **settings)
    assert not any("collapsed" in event.get("text", "") for event in events)


@pytest.mark.parametrize("system", [SYSTEMS[0][0], SYSTEMS[1][0]], ids=["bert", "word2vec"])
def test_the_weights_of_the_best_epoch_are_kept(system: System, tokenizer: Tokenizer) -> None:
    """Also of word vectors, whose tables hold the words of the training examples alone while they are trained."""
    dev = [("a fine house", "good"), ("a dull house", "bad"), ("fine bread", "good"), ("dull bread", "good")]
    events: list[Event] = []
    settings: dict[str, Any] = {**SETTINGS, "dev": dev, "epochs": 6, "final_weights": "best", "on_event": events.append}
    model = finetune(untrained(system, tokenizer), EXAMPLES, task="classify", **settings)
    evaluations = [event for event in events if event["event"] == "evaluation"]
    assert [event["step"] for event in evaluations] == list(range(0, 13, 2))
    assert model.card.scores["dev"]["values"]["accuracy"]["value"] == max(event["score"] for event in evaluations)
    with pytest.raises(UsageError, match="validation set"):
        finetune(untrained(system, tokenizer), EXAMPLES, final_weights="best", **SETTINGS)
