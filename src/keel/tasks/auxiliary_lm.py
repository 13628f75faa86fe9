"""A task that goes on with pre-training on its own rows (Radford et al. 2018): what language is, is not forgotten."""

import torch
from torch import Tensor, nn

from keel.data.collation import EncodedExamples, TaskBatch
from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.systems.system import CausalLMObjective
from keel.tasks.task import Task
from keel.training.counter_rng import CounterRng
from keel.training.objective import Objective, State


class AuxiliaryLM(Objective):
    """L = L_task + weight L_language, the mean of -log p(next token | those before) over all rows of the task; both
    read one pass through the encoder. It is reported with its weight, so that the losses add up."""

    def __init__(self, task: Task, objective: Objective, weight: float):
        super().__init__()
        system = task.system
        if task.frozen:
            raise UsageError("--lm-loss teaches the encoder, and --freeze leaves it as it is: choose one of them")
        if task.network is not None or task.mix is not None:
            raise UsageError(
                "--lm-loss reads the encoder's top layer as it is: leave out --network, --characters, --mix"
            )
        if (
            not system.is_causal_lm
            or getattr(system, "bidirectional", False)
            or not isinstance(objective, CausalLMObjective)
        ):
            what = f"{system.name} is not pre-trained to foretell the next word from those before it alone"
            raise UsageError(f"{what}: leave out --lm-loss, or take a gpt, an rnn or a ulmfit")
        self.task, self.objective, self.weight = task, objective, weight

    def blocks(self) -> list[nn.Module]:
        return self.task.blocks()

    def input_parameters(self) -> list[nn.Parameter]:
        """The task's: words that the language model foretells too stay below, since the task's head stands above."""
        return self.task.input_parameters()

    def epoch_size(self, data: EncodedExamples) -> int:
        return self.task.epoch_size(data)

    def batch(self, data: EncodedExamples, rng: CounterRng, examples: range) -> TaskBatch:
        return self.task.batch(data, rng, examples)

    def counts(self, batch: TaskBatch) -> dict[str, Tensor]:
        assert batch.inputs is not None
        return {**self.task.counts(batch), "language": has_next_token(batch.inputs).sum()}

    def forward(self, batch: TaskBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        rows, objective = batch.inputs, self.objective
        assert rows is not None
        assert isinstance(objective, CausalLMObjective)
        output = self.task.encoder(rows)
        task = self.task.loss(batch, self.task.features_from_output(output, rows, batch.selection))
        language = objective.nll(output.top[:, :-1], rows.ids[:, 1:], has_next_token(rows))
        return {"loss": task, "language": self.weight * language}, state


def has_next_token(rows: TokenBatch) -> Tensor:
    """[batch, time - 1] 1 where a token is followed by another of its row, else 0."""
    if rows.position_ids is not None:
        return (rows.position_ids.diff() == 1).float()
    place = torch.arange(1, rows.ids.shape[1], device=rows.ids.device)
    return (place < rows.lengths[:, None]).float()
