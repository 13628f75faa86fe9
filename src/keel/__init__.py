"""Keel: pre-train on your own text, fine-tune on your own labels, compare the generations side by side, look inside."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keel.classifier import Classifier
    from keel.errors import KeelError
    from keel.model import Model
    from keel.systems.bert import Bert
    from keel.text.corpus import Corpus
    from keel.text.tokenizer import Tokenizer
    from keel.text.tokens import Tokens
    from keel.train.loop import Train
    from keel.verbs import convert, embed, evaluate, fill, finetune, predict, pretrain

__version__ = "0.1.0"

_HOMES = {
    "keel.classifier": ("Classifier",),
    "keel.errors": ("KeelError",),
    "keel.model": ("Model",),
    "keel.systems.bert": ("Bert",),
    "keel.text.corpus": ("Corpus",),
    "keel.text.tokenizer": ("Tokenizer",),
    "keel.text.tokens": ("Tokens",),
    "keel.train.loop": ("Train",),
    "keel.verbs": ("convert", "embed", "evaluate", "fill", "finetune", "predict", "pretrain"),
}
__all__ = [*(name for names in _HOMES.values() for name in names)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `import keel` alone does not load torch."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'keel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
