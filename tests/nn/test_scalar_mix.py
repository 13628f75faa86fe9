"""All layers of an encoder in one vector, with weights that are learned."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from keel.api.evaluation import evaluate
from keel.api.finetuning import finetune
from keel.config import replace
from keel.data.examples import read_examples
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.explain.layers.layer_weights import layer_weights
from keel.model import Model
from keel.nn.pooling import ScalarMix
from keel.systems.bert import Bert

EXAMPLES = [("a wonderful film", "good"), ("a dreadful film", "bad"), ("it was wonderful", "good"),
            ("it was dreadful and long", "bad")] * 4  # fmt: skip
TAGGED = [(["a", "film"], ["DET", "NOUN"]), (["the", "old", "house"], ["DET", "ADJ", "NOUN"])] * 4


@pytest.fixture
def parent(tokenizer: Tokenizer) -> Model:
    torch.manual_seed(0)
    size: dict[str, int] = {"layers": 2, "width": 32, "head_dim": 16, "max_positions": 32, "sequence_length": 16}
    system = replace(Bert(dropout=0.0, attention_dropout=0.0), **size)
    return Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer)


def test_the_mix_is_the_formula() -> None:
    mix = ScalarMix(3)
    with torch.no_grad():
        mix.scores.copy_(torch.tensor([0.0, 1.0, -2.0]))
        mix.gamma.fill_(1.7)
    layers = torch.randn(4, 5, 3, 6)
    s = torch.exp(mix.scores) / torch.exp(mix.scores).sum()
    expected = 1.7 * sum(s[j] * layers[:, :, j] for j in range(3))
    torch.testing.assert_close(mix(layers), expected)
    assert mix.weights.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize(("task", "data"), [("classify", EXAMPLES), ("tag", TAGGED)])
def test_every_task_can_read_all_layers_and_keeps_the_mix(
    parent: Model, tmp_path: Path, task: str, data: list[Any], freeze: bool
) -> None:
    model = finetune(parent, data, task=task, dev=None, freeze=freeze, mix=True, epochs=30, lr=0.02, batch=4)
    assert model.task is not None
    assert model.task.mix is not None
    assert model.task.mix.scores.abs().max() > 0.01, "which layers it likes was learned"
    score = evaluate(model, data).main_value
    assert score == 1.0 or (freeze and task == "classify")  # [CLS] alone knows little without pre-training
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert again.task is not None
    assert layer_weights(again) == layer_weights(model)
    assert evaluate(again, data).main_value == score


def test_frozen_features_give_what_the_encoder_gives(make_task: Callable[..., Any]) -> None:
    examples = read_examples(EXAMPLES, pair=False)
    frozen, live = (make_task(examples, mix=True, frozen=frozen) for frozen in (True, False))
    live.load_state_dict(frozen.state_dict())
    data = frozen.encode_examples(examples)
    assert data.features is not None
    assert data.features.shape == (len(examples), 2, 32)
    torch.testing.assert_close(
        *(
            torch.cat([found for _, found in task.predict_all_logits(task.encode_examples(examples), 64)])
            for task in (frozen, live)
        )
    )


def test_one_layer_alone_is_nothing_to_mix() -> None:
    with pytest.raises(UsageError, match=r"word2vec has one: leave out mix$"):
        finetune("word2vec", EXAMPLES, dev=None, mix=True, epochs=1)
