"""Auxiliary language-modelling loss while fine-tuning (Radford et al. 2018, GPT-1)."""

import torch
from torch import Tensor, nn

from keel.data.collation import EncodedExamples, TaskBatch
from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.systems.capabilities import NextTokenLoss
from keel.tasks.task import Task
from keel.training.counter_rng import CounterRng
from keel.training.objective import Objective, State


class AuxiliaryLM(Objective):
    """L = L_task + weight * L_lm, with L_lm the mean of -log p(next token | previous tokens) over the task's sequences;
    both from one pass through the encoder. L_lm is reported with its weight, so that the losses add up."""

    def __init__(self, task: Task, objective: Objective, weight: float):
        super().__init__()
        system = task.system
        if task.frozen:
            raise UsageError("--lm-loss trains the encoder, and --freeze does not: leave out one of them")
        if task.network is not None or task.mix is not None:
            raise UsageError("--lm-loss needs a head on the top layer: leave out --network, --characters, --mix")
        if not (isinstance(objective, NextTokenLoss) and objective.is_causal):
            what = f"{system.name} is not a left-to-right language model"
            raise UsageError(f"{what}: leave out --lm-loss, or use gpt, ulmfit or a unidirectional rnn")
        self.task, self.objective, self.weight = task, objective, weight

    def blocks(self) -> list[nn.Module]:
        return self.task.blocks()

    def input_parameters(self) -> list[nn.Parameter]:
        """The task's: with tied embeddings they are below the head, although the language model predicts with them."""
        return self.task.input_parameters()

    def setup(self, data: EncodedExamples) -> None:
        self.task.setup(data)

    def epoch_size(self, data: EncodedExamples) -> int:
        return self.task.epoch_size(data)

    def batch(self, data: EncodedExamples, rng: CounterRng, examples: range) -> TaskBatch:
        return self.task.batch(data, rng, examples)

    def counts(self, batch: TaskBatch) -> dict[str, Tensor]:
        assert batch.inputs is not None
        return {**self.task.counts(batch), "language": has_next_token(batch.inputs).sum()}

    def forward(self, batch: TaskBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        inputs, objective = batch.inputs, self.objective
        assert inputs is not None
        assert isinstance(objective, NextTokenLoss)
        output = self.task.encoder(inputs)
        task = self.task.loss(batch, self.task.head_features(output, inputs, batch.selection))
        language = objective.nll(output.top[:, :-1], inputs.ids[:, 1:], has_next_token(inputs))
        return {"loss": task, "language": self.weight * language}, state


def has_next_token(inputs: TokenBatch) -> Tensor:
    """[batch, time - 1] 1 where the next token is of the same sequence, else 0."""
    if inputs.position_ids is not None:
        return (inputs.position_ids.diff() == 1).float()
    position = torch.arange(1, inputs.ids.shape[1], device=inputs.ids.device)
    return (position < inputs.lengths[:, None]).float()
