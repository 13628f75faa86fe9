"""Losses in words: "loss 7.600 (mlm 6.910, nsp 0.690)", "loss (negative sampling) 4.144"."""

from collections.abc import Mapping

LOSS_NAMES = {
    "negative": "negative sampling",
    "nce": "noise-contrastive estimation",
    "hierarchical": "hierarchical softmax",
    "squares": "weighted least squares",
    "next": "next token",
    "previous": "previous token",
    "language": "language model",
    "ar_tar": "AR and TAR",
    "ngram": "n-gram",
}
"""Names of losses that would not be understood beside a number, such as the sign in "negative 4.144"."""
PART = "loss on "
"""Before the name of a part of the validation data, such as a language."""


def name_loss(losses: Mapping[str, float]) -> str:
    """ "loss", with the name of its only part: "loss (negative sampling)"."""
    (name, *others) = [*losses] or ["loss"]
    return "loss" if others or name == "loss" else f"loss ({LOSS_NAMES.get(name, name)})"


def format_loss(loss: float, losses: Mapping[str, float]) -> str:
    """A loss with its parts, if there are several: "7.600 (mlm 6.910, nsp 0.690)"."""
    parts = ", ".join(f"{LOSS_NAMES.get(name, name)} {value:.3f}" for name, value in losses.items())
    return f"{loss:.3f}" + (f" ({parts})" if len(losses) > 1 else "")
