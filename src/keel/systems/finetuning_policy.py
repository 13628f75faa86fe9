"""How systems learn a task by labels."""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from torch import Tensor

from keel.data.label_kinds import LabelKind
from keel.data.token_batch import SubwordUnits, distinct_ids
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.training.objective import CustomUpdate


class FineTuningPolicy:
    """How a system learns a task by labels: as it stands, by gradients through its encoder, with its settings as they
    are, dropout apart; a system with a way of its own has its own."""

    def __init__(self, system: Any, fields: tuple[str, ...] = ("dropout",)):
        self.system, self.fields = system, fields
        """Of the fields, as far as it has them, those that may change when a trained model learns a task."""

    def from_scratch_system(self) -> Any:
        """The system's settings for learning a task from nothing, without any text to learn from first."""
        return self.system

    def extend_new_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer of a new model with whatever pieces this system needs beside those of text."""
        return tokenizer

    def extend_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """A model's tokenizer with the marks that its tasks' rows have and its pre-training did not; their vectors are
        learned with the task."""
        return tokenizer

    def head_defaults(self, kind: LabelKind | None = None) -> dict[str, Any]:
        """Of what stands on the encoder, the settings that are this system's own unless told otherwise, for labels of
        this kind."""
        return {}

    def adapt_system(self, kind: LabelKind, counts: Sequence[int], *, frozen: bool) -> Any:
        """The system's settings for labels of this kind, whose names came so often each."""
        return self.system

    def subword_inputs(
        self, ids: np.ndarray, starts: np.ndarray, tokenizer: Tokenizer
    ) -> tuple[np.ndarray, np.ndarray, SubwordUnits]:
        """For those who spell: rows end to end as places in the spelling of their words, where each row starts, and
        this spelling."""
        used, places = distinct_ids(ids)
        return places, starts, self.system.subword_units(used.tolist(), tokenizer)

    def custom_update(self, task: Any) -> CustomUpdate | None:
        """What makes the updates of a task, if there is a faster way than gradients."""
        return None

    def label_logits(self, scores: Tensor) -> Tensor:
        """[batch, labels] what a linear head's scores say of each label."""
        return scores

    @property
    def one_vs_rest(self) -> bool:
        """Whether each label is judged for itself though a text has one."""
        return False


class NoFineTuning(FineTuningPolicy):
    """That of a system which labels alone teach nothing."""

    def __init__(self, system: Any, why: str):
        super().__init__(system)
        self.why = why

    def from_scratch_system(self) -> NoReturn:
        raise UsageError(self.why)
