"""One of several choices that completes or answers a text: each is read after the text, and the likeliest wins."""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from keel.data.collation import EncodedExamples, TokenSelection
from keel.data.examples import DEFAULT_COLUMNS, Columns, Example, Examples
from keel.data.input_windows import FlatTokens
from keel.data.multiple_choice_files import make_choice_example, read_choices
from keel.data.predictions import ChoicePredictions, Predictions
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note
from keel.metrics.scores import Scores, score_choices
from keel.systems.static_vectors import WordSystem
from keel.systems.system import System
from keel.tasks.classify import TextClassification
from keel.training.plan import Train


class MultipleChoice(TextClassification):
    """p(choice k | text) = softmax over k of (w dropout(summary of text and choice k) + b): a row for each choice, in
    the system's frame for pairs. Radford et al. (2018) and Devlin et al. (2019) learn RACE and SWAG so."""

    name: ClassVar[str] = "choose"
    pair: ClassVar[bool] = True

    @classmethod
    def read_examples(cls, source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
        return read_choices(source, columns, on_event)

    @classmethod
    def finetuning_defaults(cls, system: System, frozen: bool, *, network: bool = False) -> Train:
        if isinstance(system, WordSystem) and not network:  # fastText's own way is for labels of texts
            return WordSystem.finetuning_defaults(system, frozen)
        return super().finetuning_defaults(system, frozen, network=network)

    def make_example(self, item: Any, number: int) -> Example:
        match item:
            case [str(text), [*choices]]:
                return make_choice_example(text, choices, None, f"item {number + 1}")
        wanted = "(text, [choice, choice, ...])"
        raise UsageError(f"item {number + 1} is {item!r:.60}, but this model was made for {wanted}: mend or drop it")

    def is_single_input(self, item: Any) -> bool:
        return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)

    def encode_examples(
        self, examples: Examples, *, batch_size: int = 32, labelled: bool = True, on_event: OnEvent = ignore
    ) -> EncodedExamples:
        """A row for each choice; a text too long is cut from its front, for the question stands at its end."""
        targets = self.labels.targets(examples) if labelled else None
        spell, choices = self.system.uses_subwords, examples.choices
        counts = np.fromiter(map(len, choices), np.int64, len(choices))
        if not len(counts) or counts.min() < 2:
            raise UsageError(f"{examples.source} has no choices: this model was made to choose between some")
        texts = FlatTokens(*self.tokenizer.encode_flat(examples.texts, oov_ids=spell))
        ends = FlatTokens(*self.tokenizer.encode_flat([choice for each in choices for choice in each], oov_ids=spell))
        owners = np.repeat(np.arange(len(counts)), counts)
        room = self.system.max_length - len(self.system.build_inputs(self.tokenizer, [], []).ids)
        sizes = texts.lengths[owners]
        ends_kept = np.minimum(ends.lengths, room - np.minimum(sizes, room // 2))
        sizes_kept = np.minimum(sizes, room - ends_kept)
        if long := len(np.unique(owners[(sizes_kept < sizes) | (ends_kept < ends.lengths)])):
            what = f"{long} of {len(counts)} examples are longer than {room} tokens"
            note(
                on_event, f"{examples.source}: {what}: of their texts the end is read, so that question and choice stay"
            )
        stops = np.cumsum(texts.lengths)[owners]
        firsts = FlatTokens(texts.ids[_spans(stops - sizes_kept, sizes_kept)], sizes_kept)
        seconds = FlatTokens(ends.ids[_spans(np.cumsum(ends.lengths) - ends.lengths, ends_kept)], ends_kept)
        rows = self.build_packed_inputs(firsts, seconds, room)
        return self._laid_out(
            examples,
            rows._replace(window_counts=counts),
            targets=targets,
            batch_size=batch_size,
            weights=np.ones(len(owners), np.float32),
            group_starts=np.append(0, np.cumsum(counts)),
        )

    def combine_groups(self, response: Tensor, members: Tensor) -> Tensor:
        """[groups, most]: the scores of each one's choices, minus infinity where it has fewer than others."""
        return response[members, 0].masked_fill(members < 0, -torch.inf)

    def example_losses(self, response: Tensor, targets: Tensor, asked: TokenSelection | None = None) -> Tensor:
        return F.cross_entropy(response, targets, reduction="none")

    def predict(self, data: Examples | EncodedExamples, *, batch: int = 64, on_event: OnEvent = ignore) -> Predictions:
        if isinstance(data, Examples):
            data = self.encode_examples(data, labelled=False, on_event=on_event)
        scores = torch.empty(len(data.example_indices), 1)
        for index, response in self.predict_all_logits(data, batch):
            scores[index] = response
        _, members = data.expand_groups(np.arange(len(data)))
        assert members is not None
        chances = self.combine_groups(scores, members).softmax(1)
        return ChoicePredictions(self.labels, chances[members >= 0].numpy(), data.examples.choices)

    def score(self, examples: Examples, predictions: Predictions) -> Scores:
        assert isinstance(predictions, ChoicePredictions)
        return score_choices(examples, predictions)


def _spans(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """[sum of lengths]: the places from each start on, as many as its length, one span after the other."""
    return np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
