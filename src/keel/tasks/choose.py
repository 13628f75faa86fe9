"""Multiple choice: each choice is scored together with the text, and the most probable one is predicted."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from keel.data.collation import EncodedExamples
from keel.data.examples import DEFAULT_COLUMNS, Columns, Example, Examples
from keel.data.input_windows import FlatTokens, concatenated_ranges
from keel.data.multiple_choice_files import make_choice_example, read_choices
from keel.data.predictions import ChoicePredictions, Predictions
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note
from keel.metrics.choice_scores import score_choices
from keel.metrics.scores import Scores
from keel.tasks.classify import TextClassification


class MultipleChoice(TextClassification):
    """p(choice k | text) = softmax_k(w dropout(pooled output of text and choice k) + b), one sequence per choice in the
    input template of pairs, as for RACE (Radford et al. 2018) and SWAG (Devlin et al. 2019)."""

    name = "choose"
    pair = True
    labels_texts = False
    head_fields = tuple(
        name
        for name in TextClassification.head_fields
        if name not in ("class_weights", "threshold", "calibrate", "max_tokens")
    )

    @classmethod
    def read_examples(cls, source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
        return read_choices(source, columns, on_event)

    @classmethod
    def make_example(cls, item: Any, number: int) -> Example:
        match item:
            case [str(text), [*choices]]:
                return make_choice_example(text, choices, None, f"item {number + 1}")
        raise cls.wrong_input(item, number, "(text, [choice, choice, ...])")

    @classmethod
    def make_examples(cls, source: Any, columns: Columns, on_event: OnEvent | None = None) -> list[Example]:
        return list(read_choices(source, columns, on_event or ignore))

    def is_single_input(self, item: Any) -> bool:
        return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)

    def encode_examples(
        self, examples: Examples, *, batch_size: int = 32, labelled: bool = True, on_event: OnEvent = ignore
    ) -> EncodedExamples:
        """A sequence for each choice; a long text is truncated at its start, since the question is at its end."""
        targets = self.labels.targets(examples) if labelled else None
        choices = examples.choices
        counts = np.fromiter(map(len, choices), np.int64, len(choices))
        if not len(counts) or counts.min() < 2:
            raise UsageError(f"{examples.source} has no choices: this model expects two or more for each text")
        texts = self.tokenize(examples.texts)
        endings = self.tokenize([choice for each in choices for choice in each])
        owners = np.repeat(np.arange(len(counts)), counts)
        room = self.system.max_text_length(self.tokenizer, pair=True)
        text_lengths = texts.lengths[owners]
        choice_room = np.minimum(endings.lengths, room - np.minimum(text_lengths, room // 2))
        text_room = np.minimum(text_lengths, room - choice_room)
        if long := len(np.unique(owners[(text_room < text_lengths) | (choice_room < endings.lengths)])):
            what = f"{long} of {len(counts)} examples are longer than {room} tokens"
            note(on_event, f"{examples.source}: {what}: the start of the text is cut, question and choice are kept")
        stops = np.cumsum(texts.lengths)[owners]
        first_texts = FlatTokens(texts.ids[concatenated_ranges(stops - text_room, text_room)], text_room)
        second_texts = FlatTokens(endings.ids[concatenated_ranges(endings.starts, choice_room)], choice_room)
        inputs = self.build_packed_inputs(first_texts, second_texts, room)
        return self.collate_inputs(
            examples,
            inputs._replace(window_counts=counts),
            targets=targets,
            batch_size=batch_size,
            weights=np.ones(len(owners), np.float32),
            group_starts=np.append(0, np.cumsum(counts)),
        )

    def combine_groups(self, logits: Tensor, members: Tensor) -> Tensor:
        """[groups, most]: the logits of each group's choices, minus infinity for padding."""
        return logits[members, 0].masked_fill(members < 0, -torch.inf)

    def predict(self, data: Examples | EncodedExamples, *, batch: int = 64, on_event: OnEvent = ignore) -> Predictions:
        if isinstance(data, Examples):
            data = self.encode_examples(data, labelled=False, on_event=on_event)
        logits = torch.empty(len(data.example_indices), 1)
        for index, found in self.predict_all_logits(data, batch):
            logits[index] = found
        _, members = data.expand_groups(np.arange(len(data)))
        assert members is not None
        probabilities = self.combine_groups(logits, members).softmax(1)
        return ChoicePredictions(self.labels, probabilities[members >= 0].numpy(), data.examples.choices)

    def score(self, examples: Examples, predictions: Predictions) -> Scores:
        assert isinstance(predictions, ChoicePredictions)
        return score_choices(examples, predictions)
