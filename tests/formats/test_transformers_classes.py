"""A folder that names a class of transformers gives equal outputs there; any other is refused there, not loaded with a
random head; and the model card says which it is."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from keel.data.corpus import Corpus
from keel.data.examples import Labels
from keel.data.label_kinds import ChoiceLabel, LabelKind, MultiLabel, Regression, SingleLabel, TagLabels
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.formats.architectures import ARCHITECTURES
from keel.formats.stored_model import StoredModel
from keel.formats.transformers_classes import auto_classes
from keel.model import Model
from keel.model_card import Card
from keel.systems import SYSTEMS
from keel.systems.bert import Bert
from keel.systems.gpt import Gpt
from keel.systems.modernbert import ModernBert
from keel.systems.system import System
from keel.tasks import TASKS

TINY: dict[str, Any] = {"layers": 1, "width": 16, "head_dim": 8, "max_positions": 32, "sequence_length": 32}
IDS = TokenBatch.pad([[2, 7, 8, 9, 3]])
NAMES = ("a", "b", "c")
TEXT = "the sailor repairs the boat and the baker serves bread to the judge"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(Corpus.of([TEXT] * 4), kind="wordpiece", size=80)


def tuned(system: System, tokenizer: Tokenizer, task: str, kind: LabelKind, **head: Any) -> Model:
    """A model with random weights, large enough that outputs differ."""
    torch.manual_seed(1)
    encoder = system.build_encoder(len(tokenizer))
    labels = Labels(kind=kind, names=NAMES if kind.has_classes else ())
    head_task = TASKS[task](system, encoder, tokenizer, labels, **head)
    for parameter in head_task.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return Model(system=system, encoder=encoder, tokenizer=tokenizer, task=head_task).to("cpu")


@pytest.mark.parametrize(
    ("task", "kind", "head", "auto"),
    [
        ("classify", SingleLabel(), {}, "AutoModelForSequenceClassification"),
        ("classify", MultiLabel(), {}, "AutoModelForSequenceClassification"),
        ("pair", Regression(), {}, "AutoModelForSequenceClassification"),
        ("tag", TagLabels(), {}, "AutoModelForTokenClassification"),
        ("choose", ChoiceLabel(), {}, "AutoModelForMultipleChoice"),
    ],
    ids=str,
)
def test_a_class_that_is_named_gives_equal_outputs(
    task: str, kind: LabelKind, head: dict[str, Any], auto: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = tuned(Bert(**TINY), tokenizer, task, kind, **head)
    model.save(tmp_path / "m")
    peer, report = getattr(transformers, auto).from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not any(report.values())
    assert auto in auto_classes(model.to_stored())
    assert model.task is not None
    with torch.inference_mode():
        if task == "tag":
            ours = model.task.classifier(model.encoder(IDS).top)
        else:
            ours = model.task.predict_logits(model.task.select_features(IDS))
        ids = IDS.ids[:, None] if task == "choose" else IDS.ids
        torch.testing.assert_close(ours, peer.eval()(ids).logits, atol=1e-5, rtol=1e-5)
    card = (tmp_path / "m/README.md").read_text()
    assert f"`{auto}`" in card
    assert "library_name: transformers" in card


@pytest.mark.parametrize(
    ("task", "kind", "head"),
    [
        ("classify", SingleLabel(), {"pool": "mean"}),
        ("classify", SingleLabel(), {"network": "lstm"}),
        ("classify", SingleLabel(), {"mix": True}),
        ("pair", SingleLabel(), {"orders": "both"}),
        ("tag", TagLabels(), {"network": "lstm"}),
        ("tag", TagLabels(), {"crf": True}),
        ("choose", ChoiceLabel(), {"mix": True}),
    ],
    ids=str,
)
def test_a_head_that_transformers_lacks_is_refused_there(
    task: str, kind: LabelKind, head: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = tuned(Bert(**TINY), tokenizer, task, kind, **head)
    model.save(tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("keel-bert", ["BertModel"])
    for auto in ("AutoModel", "AutoModelForSequenceClassification", "AutoModelForTokenClassification"):
        with pytest.raises(ValueError, match="keel-bert"):
            getattr(transformers, auto).from_pretrained(tmp_path / "m")
    peer: Any = transformers.BertModel
    body, report = peer.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not any(report.values())
    again = Model.load(tmp_path / "m")
    assert again.task is not None
    with torch.inference_mode():
        top = again.encoder(IDS).top
        torch.testing.assert_close(top, body.eval()(IDS.ids).last_hidden_state, atol=1e-5, rtol=1e-5)
    for name, tensor in model.tensors().items():
        assert torch.equal(again.tensors()[name], tensor)
    card = (tmp_path / "m/README.md").read_text()
    assert "Auto" not in card
    assert "transformers.BertModel" in card
    assert "library_name: keel" in card


def test_a_classifier_on_gpt_is_refused_there_and_a_gpt_is_not(tokenizer: Tokenizer, tmp_path: Path) -> None:
    system = Gpt(**TINY)
    tuned(system, tokenizer, "classify", SingleLabel()).save(tmp_path / "m")
    with pytest.raises(ValueError, match="keel-gpt2"):
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
    encoder = system.build_encoder(len(tokenizer))
    objective = system.build_objective(encoder, tokenizer)
    Model(system=system, encoder=encoder, tokenizer=tokenizer, objective=objective).save(tmp_path / "lm")
    peer: Any = transformers.AutoModelForCausalLM
    _, report = peer.from_pretrained(tmp_path / "lm", output_loading_info=True)
    assert not any(report.values())
    assert "`AutoModelForCausalLM`" in (tmp_path / "lm/README.md").read_text()


@pytest.mark.parametrize("name", [name for name, each in ARCHITECTURES.items() if not each.in_transformers])
def test_the_card_of_what_transformers_does_not_have_promises_nothing(name: str, tokenizer: Tokenizer) -> None:
    own = {"gpt": Gpt(sink=True), "sandwich_modernbert": ModernBert(sandwich_norm=True)}
    system = own.get(name) or SYSTEMS[name]()
    stored = StoredModel(system=system, tokenizer=tokenizer, vocab_size=len(tokenizer), tensors={})
    card = Card(title="m").render(stored)
    assert "Auto" not in card
    assert "library_name: keel" in card


def test_types_that_only_keel_has_are_none_of_transformers() -> None:
    ours = {name for name, each in ARCHITECTURES.items() if not each.in_transformers}
    assert ours
    assert not ours & {*transformers.CONFIG_MAPPING.keys()}
    assert {each.system.name for each in ARCHITECTURES.values()} == {*SYSTEMS} - {"ernie"}  # a folder of bert
    assert all(name == each.model_type and not name.startswith("keel-") for name, each in ARCHITECTURES.items())
