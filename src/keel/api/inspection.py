"""Inspection of a trained model: the layer weights of its scalar mix."""

from keel.api.model_loading import ModelSource, load_model
from keel.events import OnEvent, ignore
from keel.explain.layer_weights import Layers, layer_weights


def layers(model: ModelSource, *, on_event: OnEvent = ignore) -> Layers:
    """The layer weights of a model that was fine-tuned with `mix` (ELMo's scalar mix)."""
    return layer_weights(load_model(model, on_event))
