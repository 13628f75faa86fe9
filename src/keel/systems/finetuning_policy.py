"""What single systems do differently when they are fine-tuned on labelled examples."""

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from torch import Tensor

from keel.data.label_kinds import LabelKind
from keel.data.token_batch import SubwordUnits, distinct_ids
from keel.data.tokenizer import Tokenizer
from keel.systems.capabilities import SubwordFeatures
from keel.training.objective import CustomUpdate

if TYPE_CHECKING:
    from keel.systems.system import System

SystemType = TypeVar("SystemType", bound="System")


class FineTuningPolicy(Generic[SystemType]):
    """How a system is fine-tuned: by gradients through its encoder. One with a recipe of its own overrides methods."""

    def __init__(self, system: SystemType):
        self.system = system

    def extend_new_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer of a new model with the tokens that this system needs beside those of the text."""
        return tokenizer

    def extend_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer with the special tokens of task inputs that pre-training lacks; fine-tuning learns them."""
        return tokenizer

    def head_defaults(self, kind: LabelKind | None = None) -> dict[str, Any]:
        """Defaults of the head's settings for labels of this kind."""
        return {}

    def adapt_system(self, kind: LabelKind, *, frozen: bool) -> SystemType:
        """The system's settings for labels of this kind."""
        return self.system

    def subword_inputs(
        self, ids: np.ndarray, starts: np.ndarray, tokenizer: Tokenizer
    ) -> tuple[np.ndarray, np.ndarray, SubwordUnits]:
        """For systems with subword features: [tokens] the index of each token among the distinct words, [sequences]
        where each sequence starts, and the subword units of the distinct words."""
        assert isinstance(self.system, SubwordFeatures)
        used, positions = distinct_ids(ids)
        return positions, starts, self.system.subword_units(used.tolist(), tokenizer)

    def custom_update(self, task: Any) -> CustomUpdate | None:
        """An objective that updates the weights of a `Task` faster than autograd, if there is one."""
        return None

    def label_logits(self, scores: Tensor, counts: tuple[int, ...]) -> Tensor:
        """[batch, labels] logits of a linear head's scores; `counts` as in `Labels`."""
        return scores

    @property
    def one_vs_rest(self) -> bool:
        """Whether each label of a single-label task gets a binary classifier of its own."""
        return False
