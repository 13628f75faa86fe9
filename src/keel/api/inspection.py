"""Looking inside a trained model: the weights of its layer mix."""

from pathlib import Path

from keel.api.model_loading import load_model
from keel.events import OnEvent, ignore
from keel.explain.layer_weights import Layers, layer_weights
from keel.model import Model


def layers(model: Model | str | Path, *, on_event: OnEvent = ignore) -> Layers:
    """How much of each layer a model's task has learned to read (fine-tuned with `mix`)."""
    return layer_weights(load_model(model, on_event))
