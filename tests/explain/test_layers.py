"""The learned mix as somebody reads it."""

import pytest

from keel.errors import UsageError
from keel.explain.layers import Layers, layer_weights
from keel.verbs import finetune

EXAMPLES = [("a fine day", "good"), ("an awful day", "bad")] * 4


def test_weights_stand_beside_bars() -> None:
    lines = Layers([0.25, 0.75], 1.5).lines()
    assert lines[0].split() == ["embeddings", "0.250", "#" * 10]
    assert lines[1].split() == ["layer", "1", "0.750", "#" * 30]
    assert lines[2].split() == ["gamma", "1.500"]


def test_a_model_without_a_mix_says_how_to_get_one() -> None:
    model = finetune("onehot", EXAMPLES, dev=None, epochs=1)
    with pytest.raises(UsageError, match="--mix"):
        layer_weights(model)
