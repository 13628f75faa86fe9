"""Token classification: named entities, parts of speech, slots, Chinese word segmentation.

The first subword of each word is classified (BERT's paper), independently or with a linear-chain CRF.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.collation import EncodedExamples, TaskBatch, TokenSelection
from keel.data.examples import DEFAULT_COLUMNS, Columns, Example, Examples, Labels
from keel.data.input_windows import PackedInputs, windows_with_context
from keel.data.label_kinds import TagLabels
from keel.data.predictions import Predictions, TagPredictions, is_segmentation
from keel.data.sentence_splitting import CHINESE
from keel.data.tables import fill_missing
from keel.data.tag_schemes import Scheme, allowed_transitions, detect_scheme, is_entity_tag
from keel.data.tagged_sentences import read_tagged_sentences, split_words, words_or_texts
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note, pluralize
from keel.metrics.scores import Scores
from keel.metrics.tagging_scores import score_tags
from keel.nn.crf_layer import Crf
from keel.nn.encoder import Encoder, EncoderOutput
from keel.nn.inference_loop import length_batches
from keel.nn.ngram_scores import NgramScores, word_hash
from keel.nn.task_network import character_units
from keel.systems.static_vectors import WordSystem
from keel.systems.system import System
from keel.tasks.head_settings import HeadSettings
from keel.tasks.task import Task, TrainTokenizer

MAX_SUBWORDS = 64
"""Subwords of one word; longer words are garbage."""
CRF_BATCH = 512
"""Sentences that the CRF decodes at once."""
NGRAMS = 1 << 19
"""Default number of n-grams with scores for a CRF on Chinese characters."""
NGRAM_LR = 1e-2
"""Smallest learning rate of these scores, which start at 0."""
TaggedTexts = list[tuple[str, tuple[str, ...]]]
"""Text and words of each example."""


class TokenClassification(Task):
    """logits = W dropout(vector of the word's first subword) + b; a CRF adds transition scores."""

    name = "tag"
    labels_texts = False
    head_fields = (*HeadSettings.NETWORK, "characters", "crf", "window_ngrams", "mix")

    def __init__(self, system: System, encoder: Encoder, tokenizer: Tokenizer, labels: Labels, **settings: Any):
        super().__init__(system, encoder, tokenizer, labels, **settings)
        self.add_classifier(self.width)
        self.crf = Crf(labels.outputs) if self.head.crf else None
        self.ngrams = NgramScores(self.head.window_ngrams, labels.outputs) if self.head.window_ngrams else None
        self.scheme: Scheme = detect_scheme([name] for name in labels.names)

    @classmethod
    def read_examples(cls, source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
        return read_tagged_sentences(source, columns, on_event)

    @classmethod
    def label_schema(cls, examples: Examples) -> Labels:
        if examples.kind is None and not any(example.words for example in examples):
            what = f"{examples.source} was read as text without tags"
            raise KeelError(f"{what}: put the tag of each word in a column after it, and use --format columns")
        return super().label_schema(examples)

    @classmethod
    def check_scorable(cls, examples: Examples, labels: Labels) -> None:
        if not isinstance(examples.kind, TagLabels):
            raise KeelError(f"{examples.source} has no tags to compare with: put each word's tag in a column after it")
        scheme = detect_scheme([name] for name in labels.names)
        others = ((each, name) for each in examples for name in each.names if not is_entity_tag(name))
        if scheme != "none" and (odd := next(others, None)):
            what = f"{odd[1]!r} is not a {scheme.removesuffix('1')} tag, as the model expects"
            raise KeelError(f"{odd[0].location}: {what}: give a file with such tags, or name their --label-column")

    @classmethod
    def fit_head(cls, head: HeadSettings, system: System, examples: Examples, given: Collection[str]) -> HeadSettings:
        """N-gram scores for a CRF on Chinese characters as words, which have little to say alone."""
        chosen = head.crf and "window_ngrams" not in given and isinstance(system, WordSystem)
        return replace(head, window_ngrams=NGRAMS) if chosen and _are_chinese_characters(examples) else head

    @classmethod
    def train_tokenizers(
        cls, system: System, examples: Examples, train: TrainTokenizer, *, separate: bool, on_event: OnEvent = ignore
    ) -> tuple[Tokenizer, Tokenizer | None]:
        if separate or system.label_tokenizer != "words" or not _are_chinese_characters(examples):
            return super().train_tokenizers(system, examples, train, separate=separate, on_event=on_event)
        # Each character has a tag. A vocabulary of jieba's words lacks most characters that occur in longer words only.
        note(on_event, "the words are Chinese characters: character tokenizer (to change it: --text.tokenizer words)")
        return train(examples.texts, "characters"), None

    def is_single_input(self, item: Any) -> bool:
        return isinstance(item, str | tuple)

    @classmethod
    def make_examples(cls, source: Any, columns: Columns, on_event: OnEvent | None = None) -> list[Example]:
        items = words_or_texts(source, columns)
        items = items if on_event is None else fill_missing(items, on_event)
        return [cls.make_example(item, number) for number, item in enumerate(items)]

    @classmethod
    def make_example(cls, item: Any, number: int) -> Example:
        match item:
            case str():
                return Example(item, None, None, f"text {number + 1}")
            case list() | tuple() if all(isinstance(word, str) and word for word in item):
                return read_tagged_sentences([list(item)])[0] if item else Example("", None, None, f"text {number + 1}")
        raise cls.wrong_input(item, number, "a text or a list of its words")

    def encode_examples(
        self, examples: Examples, *, batch_size: int = 32, labelled: bool = True, on_event: OnEvent = ignore
    ) -> EncodedExamples:
        """Sentences as subword sequences; a long one has several windows, and each word is tagged in one of them."""
        targets = self.labels.targets(examples) if labelled else None
        if targets is not None and (targets < 0).any():
            raise KeelError(self._unknown_tag(examples))
        sentences = [self.split_into_words(example) for example in examples]
        room = self.system.max_text_length(self.tokenizer)
        subwords = self.subword_ids(sentences, examples.source, on_event)
        inputs, counts, selected, selected_counts, selected_words = [], [], [], [], []
        index_of = {word: index for index, word in enumerate(subwords)}
        tokens = long = 0
        for words in sentences:
            parts = [subwords[word] for word in words]
            windows = self.word_windows(parts)
            counts.append(len(windows))
            long += len(windows) > 1
            for span, tagged in windows:
                ids = [number for word in span for number in parts[word]]
                built = self.system.build_inputs(self.tokenizer, ids)
                positions = np.cumsum([built.first_start, *(len(parts[word]) for word in span)])
                selected += (tokens + positions[tagged.start - span.start : tagged.stop - span.start]).tolist()
                selected_counts.append(len(tagged))
                selected_words += [index_of[words[number]] for number in tagged]
                inputs.append(built)
                tokens += len(built.ids)
        if long:
            what = f"{long} of {len(examples)} sentences are longer than {room} tokens"
            note(on_event, f"{examples.source}: {what}: split into windows; each word is tagged once")
        fields = {}
        if self.head.characters != "none":
            fields["characters"] = character_units(list(subwords))
            fields["selected_words"] = np.array(selected_words, np.int64)
        if self.ngrams is not None:
            fields["word_hashes"] = np.array(
                [word_hash(self.tokenizer.to_half_width(word)) for word in subwords], np.int64
            )[selected_words]
        return self.collate_inputs(
            examples,
            PackedInputs.from_inputs(inputs, np.array(counts)),
            targets=targets,
            batch_size=batch_size,
            weights=np.ones(len(inputs), np.float32),
            selected=np.array(selected, np.int64),
            selected_starts=np.cumsum([0, *selected_counts]),
            **fields,
        )

    def split_into_words(self, example: Example) -> tuple[str, ...]:
        """The words of an example; Chinese text is split into characters, or into words for parts of speech."""
        if not example.words and is_segmentation(self.labels):  # a tag for each character, of 1998 and ABC too
            return tuple("".join(example.text.split()))
        return example.words or tuple(split_words(example.text, chinese_words=self.scheme == "none"))

    def word_windows(self, parts: list[list[int]]) -> list[tuple[range, range]]:
        """The words in each window of a sentence with these subwords, and those of them that are tagged there."""
        return windows_with_context([len(part) for part in parts], self.system.max_text_length(self.tokenizer))

    def subword_ids(
        self, sentences: list[tuple[str, ...]], source: str, on_event: OnEvent = ignore
    ) -> dict[str, list[int]]:
        """The subword ids of each distinct word: at least one."""
        most = max(1, min(MAX_SUBWORDS, self.system.max_text_length(self.tokenizer) // 2))
        distinct = list(dict.fromkeys(word for words in sentences for word in words))
        found = self.tokenizer.encode_words(distinct, oov_ids=self.system.uses_subwords)
        if empty := [word for word, ids in zip(distinct, found, strict=True) if not ids]:
            what = f"{pluralize(len(empty), 'word')}, such as {empty[0]!r}, without a token"
            note(on_event, f"{source}: {what}: treated as unknown words")
        unknown = [self.tokenizer.unknown_id]
        return {word: ids[:most] or unknown for word, ids in zip(distinct, found, strict=True)}

    def _unknown_tag(self, examples: Examples) -> str:
        names = {*self.labels.names}
        example, tag = next((each, name) for each in examples for name in each.names if name not in names)
        known = ", ".join(map(repr, self.labels.names[:10])) + (", ..." if len(names) > 10 else "")
        what = f"the tag {tag!r} of this sentence did not occur in training (tags: {known})"
        return f"{example.location}: {what}: correct it, or train with it"

    def setup(self, data: EncodedExamples) -> None:
        """Choose the n-grams of the training examples."""
        super().setup(data)
        if self.ngrams is not None:
            assert data.word_hashes is not None
            assert data.selected_starts is not None
            self.ngrams.count(data.word_hashes, data.selected_starts)

    def least_lrs(self) -> dict[nn.Parameter, float]:
        more = [] if self.ngrams is None else list(self.ngrams.parameters())
        return super().least_lrs() | dict.fromkeys(more, NGRAM_LR)

    def head_features(self, output: EncoderOutput, inputs: TokenBatch, selection: TokenSelection | None) -> Tensor:
        assert selection is not None
        return selection.gather(output.top)

    @property
    def projects_tokens(self) -> bool:
        return self.network is None and self.encoder.projects_tokens

    def predict_logits(self, features: Tensor, selection: TokenSelection | None = None) -> Tensor:
        """[batch, words, tags]: logits."""
        if self.network is not None:
            assert selection is not None
            words, characters = selection.character_indices, selection.characters
            logits = self.classifier(self.network(features, selection.counts, words, characters))
        else:
            logits = self.classifier(self.dropout(self.project_tokens(features)))
        if self.ngrams is None:
            return logits
        assert selection is not None
        assert selection.word_hashes is not None
        return logits + self.ngrams(selection.word_hashes)

    def example_losses(self, logits: Tensor, targets: Tensor, selection: TokenSelection | None = None) -> Tensor:
        """-log p of the tags of each sequence."""
        assert selection is not None
        if self.crf is not None:
            return -self.crf(logits, targets, selection.counts)
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view_as(targets).where(selection.mask, 0.0).sum(1)

    def counts(self, batch: TaskBatch) -> dict[str, Tensor]:
        """Words, not sentences."""
        assert batch.selection is not None
        words = batch.selection.counts.sum().to(batch.weights.dtype)
        return {"loss": words, "words": words}

    def predict(
        self, data: Examples | EncodedExamples, *, batch: int = 64, on_event: OnEvent = ignore
    ) -> TagPredictions:
        """Tags of all words; a CRF decodes whole sentences, also those of several windows."""
        texts, logits = self._word_logits(data, batch, on_event)
        if self.crf is not None:
            tags, confidence = self._crf_decode(logits, np.array([len(words) for _, words in texts]))
        elif len(logits):
            confidence, tags = logits.softmax(1).max(1)
        else:
            confidence, tags = logits.new_zeros(0), torch.zeros(0).long()
        return TagPredictions(self.labels, confidence.numpy(), tags.numpy(), texts)

    def tag_probabilities(self, examples: Examples, on_event: OnEvent = ignore) -> tuple[TaggedTexts, np.ndarray]:
        """Text and words of each example, and [words of all examples, tags] the probability of every tag."""
        texts, logits = self._word_logits(examples, 64, on_event)
        if self.crf is None:
            return texts, logits.softmax(1).numpy()
        probabilities = torch.zeros_like(logits)
        for crf, positions, mask, sizes in self._crf_batches(np.array([len(words) for _, words in texts])):
            probabilities[positions[mask]] = crf.marginals(logits[positions], sizes)[mask]
        return texts, probabilities.numpy()

    def _word_logits(
        self, data: Examples | EncodedExamples, batch: int, on_event: OnEvent
    ) -> tuple[TaggedTexts, Tensor]:
        """Text and words of each example, and [words of all examples, tags] logits."""
        if isinstance(data, Examples):
            data = self.encode_examples(data, labelled=False, on_event=on_event)
        assert data.selected is not None
        # The whitespace between single characters of a segmentation is ours, and does not end a word.
        segmentation = is_segmentation(self.labels)
        texts = [
            ("".join(example.words) if segmentation and example.words else example.text, self.split_into_words(example))
            for example in data.examples
        ]
        logits = torch.zeros(len(data.selected), self.labels.outputs)
        if len(data.selected):
            for numbers, found in self.predict_all_logits(data, batch):
                logits[numbers] = found
        return texts, logits

    def _crf_decode(self, logits: Tensor, lengths: np.ndarray) -> tuple[Tensor, Tensor]:
        """[words] the most probable tag sequences (Viterbi), and the marginal probability of each tag."""
        found_tags, confidence = torch.zeros(len(logits)).long(), torch.zeros(len(logits))
        transitions = allowed_transitions(self.labels.names, self.scheme)
        for crf, positions, mask, sizes in self._crf_batches(lengths):
            scores = logits[positions]
            tags = crf.decode(scores, sizes, transitions)
            marginals = crf.marginals(scores, sizes).gather(2, tags[..., None])[..., 0]
            found_tags[positions[mask]], confidence[positions[mask]] = tags[mask], marginals[mask]
        return found_tags, confidence

    def _crf_batches(self, lengths: np.ndarray) -> Iterator[tuple[Crf, Tensor, Tensor, Tensor]]:
        """The CRF on the CPU with, batch by batch, [sentences, words] indices of words, their mask, and lengths."""
        assert self.crf is not None
        crf = Crf(self.labels.outputs)
        crf.load_state_dict({name: value.cpu() for name, value in self.crf.state_dict().items()})
        starts = np.cumsum(lengths) - lengths
        for index in length_batches(lengths, CRF_BATCH):
            most = max(1, int(lengths[index].max()))
            inside = np.arange(most) < lengths[index][:, None]
            if not inside.any():
                continue
            positions = torch.from_numpy(np.where(inside, starts[index][:, None] + np.arange(most), 0))
            yield crf, positions, torch.from_numpy(inside), torch.from_numpy(lengths[index])

    def score(self, examples: Examples, predictions: Predictions) -> Scores:
        assert isinstance(predictions, TagPredictions)
        self.check_scorable(examples, self.labels)
        return score_tags(examples, predictions)


def _are_chinese_characters(examples: Examples) -> bool:
    """Whether most words are single Chinese characters."""
    words = [word for example in examples for word in example.words]
    return 2 * sum(len(word) == 1 and CHINESE.match(word) is not None for word in words) > len(words)
