"""A tag for each word: entities, parts of speech, slots, the borders of Chinese words.

A word's first piece speaks for it (BERT's paper). Tags are chosen one by one or, with a CRF, as a chain.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.collation import EncodedExamples, TaskBatch, TokenSelection
from keel.data.examples import DEFAULT_COLUMNS, Columns, Example, Examples, Labels
from keel.data.input_windows import PackedInputs
from keel.data.predictions import Predictions, TagPredictions, is_segmentation
from keel.data.tag_schemes import Scheme, allowed_transitions, detect_scheme, is_entity_tag
from keel.data.tagged_sentences import read_tagged_sentences, split_words
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, counted, ignore, note
from keel.metrics.scores import Scores
from keel.metrics.tagging_scores import score_tags
from keel.nn.crf_layer import Crf
from keel.nn.encoder import Encoder, EncoderOutput
from keel.nn.task_network import character_units
from keel.systems.static_vectors import WordSystem
from keel.systems.system import System
from keel.tasks.task import HeadSettings, Task
from keel.training.plan import Train

PIECES = 64
"""Of one word, at most: more are garbage."""
CHUNK = 512
"""Sentences whose chains are searched together."""


class TokenClassification(Task):
    """logits = W dropout(vector of the word's first piece) + b; a CRF adds what may follow what."""

    name: ClassVar[str] = "tag"
    head_fields: ClassVar[tuple[str, ...]] = (*HeadSettings.NETWORK, "characters", "crf", "mix")

    def __init__(
        self,
        system: System,
        encoder: Encoder,
        tokenizer: Tokenizer,
        labels: Labels,
        **settings: Any,
    ):
        super().__init__(system, encoder, tokenizer, labels, **settings)
        self.dropout = nn.Dropout(getattr(system, "dropout", 0.1))
        self.classifier = nn.Linear(self.width, labels.outputs)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)
        self.crf = Crf(labels.outputs) if self.head.crf else None
        self.scheme: Scheme = detect_scheme([name] for name in labels.names)

    @classmethod
    def read_examples(cls, source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
        return read_tagged_sentences(source, columns, on_event)

    @classmethod
    def label_schema(cls, examples: Examples) -> Labels:
        if examples.kind is None and not any(example.words for example in examples):
            what = f"{examples.source} was read as text without tags"
            raise KeelError(f"{what}: put each word's tag after it, in a column, and say --format columns if it is so")
        return super().label_schema(examples)

    @classmethod
    def check_scorable(cls, examples: Examples, labels: Labels) -> None:
        if examples.kind != "tags":
            raise KeelError(f"{examples.source} has no tags to compare with: put each word's tag after it, in a column")
        scheme = detect_scheme([name] for name in labels.names)
        others = ((each, name) for each in examples for name in each.names if not is_entity_tag(name))
        if scheme != "none" and (odd := next(others, None)):
            what = f"{odd[1]!r} in this sentence is no {scheme.removesuffix('1')} tag, as those of the model are"
            raise KeelError(f"{odd[0].location}: {what}: give a file with such tags, or name their --label-column")

    @classmethod
    def finetuning_defaults(cls, system: System, frozen: bool, *, network: bool = False) -> Train:
        if isinstance(system, WordSystem) and not network:  # fastText's own way is for its bags of words
            return WordSystem.finetuning_defaults(system, frozen)
        return super().finetuning_defaults(system, frozen, network=network)

    def is_single_input(self, item: Any) -> bool:
        return isinstance(item, str | tuple)

    def make_example(self, item: Any, number: int) -> Example:
        match item:
            case str():
                return Example(item, None, None, f"text {number + 1}")
            case list() | tuple() if all(isinstance(word, str) and word for word in item):
                return read_tagged_sentences([list(item)])[0] if item else Example("", None, None, f"text {number + 1}")
        wanted = "a text or a list of its words"
        raise UsageError(f"item {number + 1} is {item!r}, but this model was made for {wanted}: mend or drop it")

    def encode_examples(
        self, examples: Examples, *, batch_size: int = 32, labelled: bool = True, on_event: OnEvent = ignore
    ) -> EncodedExamples:
        """Sentences as rows of pieces; a long one has several rows, each asked about the words it sees best."""
        targets = self.labels.targets(examples) if labelled else None
        if targets is not None and (targets < 0).any():
            raise KeelError(self._strange(examples))
        spelled = self.head.characters != "none"
        sentences = [self.split_into_words(example) for example in examples]
        room = self.system.max_length - len(self.system.build_inputs(self.tokenizer, [], None).ids)
        pieces = self._pieces(sentences, max(1, min(PIECES, room // 2)), examples.source, on_event)
        framed, counts, asked, asked_counts, asked_words = [], [], [], [], []
        place_of = {word: place for place, word in enumerate(pieces)}
        done = long = 0
        for words in sentences:
            parts = [pieces[word] for word in words]
            spans = windows([len(part) for part in parts], room)
            counts.append(len(spans))
            long += len(spans) > 1
            for span, mine in spans:
                row = self.system.build_inputs(self.tokenizer, [number for word in span for number in parts[word]])
                places = np.cumsum([row.first_start, *(len(parts[word]) for word in span)])
                asked += (done + places[mine.start - span.start : mine.stop - span.start]).tolist()
                asked_counts.append(len(mine))
                asked_words += [place_of[words[number]] for number in mine]
                framed.append(row)
                done += len(row.ids)
        if long:
            what = f"{long} of {len(examples)} sentences are longer than {room} tokens and are read in windows"
            note(on_event, f"{examples.source}: {what}; every word is tagged once")
        return self._laid_out(
            examples,
            PackedInputs.from_inputs(framed, np.array(counts)),
            targets=targets,
            batch_size=batch_size,
            weights=np.ones(len(framed), np.float32),
            selected=np.array(asked, np.int64),
            selected_starts=np.cumsum([0, *asked_counts]),
            **(
                {"characters": character_units(list(pieces)), "selected_words": np.array(asked_words, np.int64)}
                if spelled
                else {}
            ),
        )

    def split_into_words(self, example: Example) -> tuple[str, ...]:
        """The words of an example; of running text those that a reader sees, Chinese by the character.

        Parts of speech, though, are those of whole words.
        """
        return example.words or tuple(split_words(example.text, chinese_words=self.scheme == "none"))

    def _pieces(
        self, sentences: list[tuple[str, ...]], most: int, source: str, on_event: OnEvent
    ) -> dict[str, list[int]]:
        """The pieces of each distinct word: one at least."""
        distinct = list(dict.fromkeys(word for words in sentences for word in words))
        found = self.tokenizer.encode_words(distinct, oov_ids=self.system.uses_subwords)
        if empty := [word for word, ids in zip(distinct, found, strict=True) if not ids]:
            what = f"{counted(len(empty), 'word')}, such as {empty[0]!r}, with nothing that the tokenizer reads"
            note(on_event, f"{source}: {what}: they are read as unknown words")
        unknown = [self.tokenizer.unknown_id]
        return {word: ids[:most] or unknown for word, ids in zip(distinct, found, strict=True)}

    def _strange(self, examples: Examples) -> str:
        names = {*self.labels.names}
        example, tag = next((each, name) for each in examples for name in each.names if name not in names)
        known = ", ".join(map(repr, self.labels.names[:10])) + (", ..." if len(names) > 10 else "")
        what = f"the tag {tag!r} of this sentence did not occur in training, which knew {known}"
        return f"{example.location}: {what}: correct it, or train with it"

    def features_from_output(
        self, output: EncoderOutput, rows: TokenBatch, asked: TokenSelection | None = None
    ) -> Tensor:
        assert asked is not None
        return asked.gather(output.top)

    def predict_logits(self, picked: Tensor, asked: TokenSelection | None = None) -> Tensor:
        """[batch, words, tags]: scores."""
        if self.network is not None:
            assert asked is not None
            return self.classifier(self.network(picked, asked.counts, asked.character_indices, asked.characters))
        return self.classifier(self.dropout(picked))

    def example_losses(self, response: Tensor, targets: Tensor, asked: TokenSelection | None = None) -> Tensor:
        """-log p of the tags of each row."""
        assert asked is not None
        if self.crf is not None:
            return -self.crf(response, targets, asked.counts)
        losses = F.cross_entropy(response.flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view_as(targets).where(asked.mask, 0.0).sum(1)

    def counts(self, batch: TaskBatch) -> dict[str, Tensor]:
        """Words, not sentences: a long one has more to say."""
        assert batch.selection is not None
        words = batch.selection.counts.sum().to(batch.weights.dtype)
        return {"loss": words, "words": words}

    def predict(
        self, data: Examples | EncodedExamples, *, batch: int = 64, on_event: OnEvent = ignore
    ) -> TagPredictions:
        """Tags for all words; a CRF sees a sentence as a whole, however many windows it was read in."""
        if isinstance(data, Examples):
            data = self.encode_examples(data, labelled=False, on_event=on_event)
        assert data.selected is not None
        # What blanks stand between characters that were given one by one is of our making, and no end of a word.
        glued = is_segmentation(self.labels)
        texts = [
            ("".join(example.words) if glued and example.words else example.text, self.split_into_words(example))
            for example in data.examples
        ]
        logits = torch.zeros(len(data.selected), self.labels.outputs)
        if len(data.selected):
            for numbers, response in self.predict_all_logits(data, batch):
                logits[numbers] = response
        if self.crf is None:
            chances, numbers = logits.softmax(1).max(1) if len(logits) else (logits.new_zeros(0), torch.zeros(0).long())
        else:
            numbers, chances = self._chains(logits, np.array([len(words) for _, words in texts]))
        return TagPredictions(self.labels, chances.numpy(), numbers.numpy(), texts)

    def _chains(self, logits: Tensor, lengths: np.ndarray) -> tuple[Tensor, Tensor]:
        """[words] the tags of the likeliest chains, and how probable each is."""
        assert self.crf is not None
        numbers, chances = torch.zeros(len(logits)).long(), torch.zeros(len(logits))
        crf = Crf(self.labels.outputs)
        crf.load_state_dict({name: value.cpu() for name, value in self.crf.state_dict().items()})
        possible = allowed_transitions(self.labels.names, self.scheme)
        starts = np.cumsum(lengths) - lengths
        order = np.argsort(-lengths, kind="stable")
        for first in range(0, len(order), CHUNK):
            index = order[first : first + CHUNK]
            most = max(1, int(lengths[index].max()))
            inside = np.arange(most) < lengths[index][:, None]
            places = torch.from_numpy(np.where(inside, starts[index][:, None] + np.arange(most), 0))
            if not inside.any():
                continue
            scores, sizes, real = logits[places], torch.from_numpy(lengths[index]), torch.from_numpy(inside)
            tags = crf.decode(scores, sizes, possible)
            chance = crf.marginals(scores, sizes).gather(2, tags[..., None])[..., 0]
            numbers[places[real]], chances[places[real]] = tags[real], chance[real]
        return numbers, chances

    def score(self, examples: Examples, predictions: Predictions) -> Scores:
        assert isinstance(predictions, TagPredictions)
        self.check_scorable(examples, self.labels)
        return score_tags(examples, predictions)


def windows(sizes: Sequence[int], room: int) -> list[tuple[range, range]]:
    """Words of so many pieces in stretches of at most `room`, and which of its words each is asked about.

    Neighbours overlap by about a quarter, and the middle of that is the border between what they are asked about.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    begins = ends - np.asarray(sizes, np.int64)
    spans = [range(0)]
    start = 0
    while start < len(sizes):
        stop = int(np.searchsorted(ends, begins[start] + room, "right"))
        spans.append(range(start, stop))
        if stop == len(sizes):
            break
        start = max(start + 1, int(np.searchsorted(begins, ends[stop - 1] - room // 4)))
    spans = spans[1:] or spans
    borders = [0, *((later.start + former.stop) // 2 for former, later in pairwise(spans)), len(sizes)]
    return [(span, range(*mine)) for span, mine in zip(spans, pairwise(borders), strict=True)]
