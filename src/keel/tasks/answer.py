"""Extractive question answering: the answer is a span of a passage.

A start vector S and an end vector E (Devlin et al. 2019, section 4.2): P(start = i) = softmax_i(S . h_i) over the
tokens of the passage and [CLS], which stands for "no answer"; likewise the end. A span's score is S . h_i + E . h_j.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keel.data.answer_files import EXPECTED, make_question, read_answers
from keel.data.collation import EncodedExamples, TokenSelection
from keel.data.examples import DEFAULT_COLUMNS, Columns, Example, Examples, Labels
from keel.data.input_windows import PackedInputs, windows_with_context
from keel.data.label_kinds import SpanLabel
from keel.data.predictions import AnswerPredictions, Predictions, SpanAnswer
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.metrics.answer_scores import AnswerScores, score_answers
from keel.metrics.scores import Scores
from keel.nn.aligned_question import AlignedQuestion
from keel.nn.encoder import Encoder, EncoderOutput
from keel.systems.capabilities import LanguageModelSystem
from keel.systems.system import System
from keel.systems.transformer import TransformerSystem
from keel.tasks.answer_windows import PASSAGE, QUESTION, PassageTokens, PassageWindow
from keel.tasks.head_settings import HeadSettings
from keel.tasks.span_search import WindowLogits, best_spans
from keel.tasks.task import Task
from keel.training.plan import Train

MAX_QUESTION = 64
"""Tokens of a question; the rest of a longer one is not read."""
MAX_WINDOW = 512
"""Tokens of question and passage in one window, for systems that read longer texts."""


class SpanAnswering(Task):
    """Start and end logits of each passage token: logits = W dropout(h_i) + b.

    Without self-attention between question and passage (word vectors, recurrent networks, ELMo), h_i is the output of a
    BiLSTM over the tokens of both, each extended by its aligned question embedding (Chen et al. 2017). These readers
    have no [CLS]: with `pooled_null`, P(no answer) = sigmoid(z) with z = V max_i h_i + c over the passage, and the
    softmax of the rest is over the passage alone. In training its gradient stops at h: spans are learned from
    answerable questions as if there were no others.
    """

    name = "answer"
    pair = True
    labels_texts = False
    head_fields = (*HeadSettings.NETWORK, "align", "pooled_null", "mix")

    def __init__(
        self,
        system: System,
        encoder: Encoder,
        tokenizer: Tokenizer,
        labels: Labels,
        *,
        null_threshold: float | None = None,
        **settings: Any,
    ):
        if encoder.bag_of_words:
            raise UsageError(f"{system.name} has no vector for each word, and --task answer needs them: use word2vec")
        super().__init__(system, encoder, tokenizer, labels, **settings)
        self.null_threshold = null_threshold
        """"No answer" is predicted if its score exceeds that of the best span by more; None: never."""
        self.align = AlignedQuestion(encoder.width) if self.head.align else None
        if self.align is not None and self.network is None:
            self.width = self.align.width
        self.add_classifier(self.width)
        self.null_classifier = self._linear(self.width) if self.head.pooled_null else None

    @classmethod
    def default_head(cls, system: System) -> dict[str, Any]:
        if isinstance(system, TransformerSystem):
            return {}
        return {"network": "lstm", "align": True, "pooled_null": True}

    @classmethod
    def finetuning_defaults(cls, system: System, frozen: bool, *, network: bool = False) -> Train:
        if network:  # thousands of questions, each with a hundred tokens or more
            return Train(epochs=5, batch=32, lr=2e-3, warmup=0.02)
        return super().finetuning_defaults(system, frozen, network=network)

    @classmethod
    def read_examples(cls, source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
        return read_answers(source, columns, on_event)

    @classmethod
    def label_schema(cls, examples: Examples) -> Labels:
        if not isinstance(examples.kind, SpanLabel):
            raise KeelError(f'{examples.source} has questions without answers: give "answers", as in {EXPECTED}')
        if not any(answers.spans for answers in examples.values):
            raise KeelError(f"{examples.source}: no answer occurs in its passage: there is nothing to learn")
        return Labels(kind=examples.kind)

    @classmethod
    def check_scorable(cls, examples: Examples, labels: Labels) -> None:
        if not isinstance(examples.kind, SpanLabel):
            raise KeelError(f'{examples.source} has no answers to compare with: give "answers" with their text')

    @classmethod
    def make_example(cls, item: Any, number: int) -> Example:
        match item:
            case [str(passage), str(question)]:
                return make_question(passage, question, f"item {number + 1}")
        raise cls.wrong_input(item, number, "(passage, question)")

    @classmethod
    def make_examples(cls, source: Any, columns: Columns, on_event: OnEvent | None = None) -> list[Example]:
        return [*read_answers(source, columns, on_event or ignore)]

    @classmethod
    def describe_example(cls, example: Example) -> dict[str, Any]:
        return {**({"id": example.id} if example.id else {}), "question": example.text}

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | ({} if self.null_threshold is None else {"null_threshold": self.null_threshold})

    def encode_examples(
        self, examples: Examples, *, batch_size: int = 32, labelled: bool = True, on_event: OnEvent = ignore
    ) -> EncodedExamples:
        """Each question with its passage, a long one in overlapping windows; a window without the answer has none.

        Questions whose answers are not in the passage are left out of training.
        """
        if labelled:
            examples = _trainable(examples, on_event)
        by_question = self.passage_windows(examples)
        windows = [window for several in by_question for window in several]
        texts = examples.seconds or []
        if long := {text for text, several in zip(texts, by_question, strict=True) if len(several) > 1}:
            what = (
                f"{pluralize(len(long), 'passage is', 'passages are')} too long for one sequence of {self.room} tokens"
            )
            note(on_event, f"{examples.source}: {what}: split into windows that overlap")
        inputs = PackedInputs.from_inputs(
            [window.inputs for window in windows], np.array([len(several) for several in by_question])
        )
        positions = [window.positions for window in windows]
        targets: list[np.ndarray] = []
        for answers, several in zip(examples.values, by_question, strict=True) if labelled else ():
            span = several[0].passage.find_span(answers)
            targets += [window.targets(span) for window in several]
        return self.collate_inputs(
            examples,
            inputs,
            targets=torch.from_numpy(np.concatenate(targets)) if labelled else None,
            batch_size=batch_size,
            weights=np.ones(len(windows), np.float32),
            selected=np.concatenate([start + each for start, each in zip(inputs.starts[:-1], positions, strict=True)]),
            selected_starts=np.cumsum([0, *map(len, positions)]),
            selected_roles=np.concatenate([window.roles for window in windows]),
            selected_offsets=np.concatenate([window.offsets for window in windows]),
        )

    @property
    def room(self) -> int:
        """Tokens of question and passage in one window."""
        return min(MAX_WINDOW, self.system.max_text_length(self.tokenizer, pair=True))

    def passage_windows(self, examples: Examples) -> list[list[PassageWindow]]:
        """The windows of each question; a passage of several questions is tokenized once."""
        room, subwords = self.room, self.system.uses_subwords
        questions = self.tokenizer.encode_many(examples.texts, oov_ids=subwords)
        texts = list(dict.fromkeys(examples.seconds or []))
        passages = {
            text: PassageTokens(encoding.ids, np.array(encoding.offsets, np.int64).reshape(-1, 2))
            for text, encoding in zip(texts, self.tokenizer.encode_with_offsets(texts, oov_ids=subwords), strict=True)
        }
        causal = isinstance(self.system, LanguageModelSystem)
        found: list[list[PassageWindow]] = []
        for question, text in zip(questions, examples.seconds or [], strict=True):
            question, passage = question[: min(MAX_QUESTION, room // 2)], passages[text]
            several: list[PassageWindow] = []
            for window, owned in windows_with_context(np.ones(len(passage.ids), np.int64), room - len(question)):
                inputs = self.system.build_inputs(self.tokenizer, question, passage.ids[window.start : window.stop])
                several.append(
                    PassageWindow(
                        inputs=inputs,
                        null_position=len(inputs.ids) - 1 if causal else 0,  # the last token has seen all others
                        question_size=len(question),
                        passage=passage,
                        window=window,
                        owned=owned,
                    )
                )
            found.append(several)
        return found

    def head_features(self, output: EncoderOutput, inputs: TokenBatch, selection: TokenSelection | None) -> Tensor:
        assert selection is not None
        return selection.gather(output.top)

    @property
    def projects_tokens(self) -> bool:
        return self.network is None and not self.head.align and self.encoder.projects_tokens

    def predict_logits(self, features: Tensor, selection: TokenSelection | None = None) -> Tensor:
        """[batch, tokens, 2]: start and end logits."""
        assert selection is not None
        if self.align is not None:
            assert selection.roles is not None
            features = self.align(features, selection.mask & (selection.roles == QUESTION))
        if self.network is None:
            hidden = self.dropout(self.project_tokens(features))
        else:
            hidden = self.network(features, selection.counts)
        logits = self.classifier(hidden)
        if self.null_classifier is None:
            return logits
        assert selection.roles is not None
        outside = ~(selection.mask & (selection.roles >= PASSAGE))[..., None]
        empty = outside.all(1)  # a passage without tokens
        seen = hidden.detach() if self.training else hidden  # attributions follow the whole gradient
        pooled = seen.masked_fill(outside, -torch.inf).amax(1).masked_fill(empty, 0.0)  # [batch, width]
        total = logits.masked_fill(outside, -torch.inf).logsumexp(1).masked_fill(empty, 0.0)  # [batch, 2]
        odds = self.null_classifier(pooled)
        # Logits of 0 for "no answer" and -odds in all for the passage: comparable between windows.
        return torch.cat([torch.zeros_like(odds)[:, None], logits[:, 1:] - (total + odds)[:, None]], 1)

    def example_losses(self, logits: Tensor, targets: Tensor, selection: TokenSelection | None = None) -> Tensor:
        """[batch]: mean of -log p(start) and -log p(end)."""
        assert selection is not None
        assert selection.roles is not None
        candidates = (selection.mask & (selection.roles != QUESTION))[..., None]
        log_p = logits.masked_fill(~candidates, -torch.inf).log_softmax(1)
        return -(log_p.masked_fill(~(targets & candidates), 0.0)).sum((1, 2)) / 2

    def setup(self, data: EncodedExamples) -> None:
        """Let the model predict "no answer" if some training questions have none."""
        super().setup(data)
        if self.null_threshold is None and any(not answers.texts for answers in data.examples.values):
            self.null_threshold = 0.0

    def predict(
        self, data: Examples | EncodedExamples, *, batch: int = 64, on_event: OnEvent = ignore
    ) -> AnswerPredictions:
        """The best spans of each question; each token is judged in the window where it has most context."""
        return self.best_answers(self.window_logits(data, batch=batch, on_event=on_event), data, self.null_threshold)

    def window_logits(
        self, data: Examples | EncodedExamples, *, batch: int = 64, on_event: OnEvent = ignore
    ) -> list[list[WindowLogits]]:
        """Start and end logits of the windows of each question."""
        if isinstance(data, Examples):
            data = self.encode_examples(data, labelled=False, on_event=on_event)
        windows = self._window_logits(data, batch)
        borders = np.searchsorted(data.example_indices, np.arange(len(data.examples) + 1)).tolist()
        return [windows[first:last] for first, last in pairwise(borders)]

    def best_answers(
        self, windows: Sequence[list[WindowLogits]], data: Examples | EncodedExamples, threshold: float | None
    ) -> AnswerPredictions:
        """Predictions from the logits of each question's windows; `threshold` is that of "no answer"."""
        examples = data if isinstance(data, Examples) else data.examples
        found = [
            _answer(several, passage, threshold)
            for several, passage in zip(windows, examples.seconds or [], strict=True)
        ]
        return AnswerPredictions(self.labels, np.array([answer.probability for answer in found]), found)

    def _window_logits(self, data: EncodedExamples, batch: int) -> list[WindowLogits]:
        assert data.selected is not None
        assert data.selected_starts is not None
        assert data.selected_roles is not None
        assert data.selected_offsets is not None
        logits = torch.zeros(len(data.selected), 2)
        for numbers, part in self.predict_all_logits(data, batch):
            logits[numbers] = part
        starts, ends = logits.numpy().T
        found: list[WindowLogits] = []
        for first, last in zip(data.selected_starts[:-1].tolist(), data.selected_starts[1:].tolist(), strict=True):
            roles = data.selected_roles[first:last]
            passage = slice(first + int((roles < PASSAGE).sum()), last)
            found.append(
                WindowLogits(
                    starts=starts[passage],
                    ends=ends[passage],
                    startable=data.selected_roles[passage] == PASSAGE,
                    offsets=data.selected_offsets[passage],
                    null=float(starts[first] + ends[first]),
                )
            )
        return found

    def tune_decisions(self, dev: Examples, on_event: OnEvent = ignore) -> None:
        """Choose the threshold of "no answer" with the highest F1 on dev, if training had unanswerable questions."""
        if self.null_threshold is None:
            return
        if all(answers.texts for answers in dev.values):
            note(on_event, f"null threshold {self.null_threshold:.3f}, not tuned: all questions of dev have an answer")
            return
        self.null_threshold, score = AnswerScores.of(dev, self.predict(dev)).best_threshold()
        note(on_event, f"null threshold {self.null_threshold:.3f}, tuned on dev (answer F1 {score:.3f})")

    def score(self, examples: Examples, predictions: Predictions) -> Scores:
        assert isinstance(predictions, AnswerPredictions)
        return score_answers(examples, predictions)


def _trainable(examples: Examples, on_event: OnEvent) -> Examples:
    """The questions that have no answer, or one in their passage."""
    kept = [index for index, answers in enumerate(examples.values) if not answers.texts or answers.spans]
    if len(kept) == len(examples):
        return examples
    left = pluralize(len(examples) - len(kept), "question is", "questions are")
    note(on_event, f"{examples.source}: {left} left out of training: no answer occurs in the passage")
    return examples.take(kept)


def _answer(windows: list[WindowLogits], passage: str, threshold: float | None) -> SpanAnswer:
    """The best span or, if its score is too low beside that of no answer, none; with the next best ones."""
    spans = best_spans(windows)
    null = min(window.null for window in windows)
    odds = null - spans[0].score if spans else 0.0
    scores = np.array([span.score for span in spans] + ([] if threshold is None and spans else [null]))
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    contradicts = bool(spans) and windows[spans[0].window].end_before_start
    found = []
    for span, probability in zip(spans, probabilities.tolist(), strict=False):
        text = passage[span.start : span.end]
        start = span.start + len(text) - len(text.lstrip())  # tokens of byte-level BPE begin with a space
        found.append(SpanAnswer(text.strip(), probability, start, start + len(text.strip())))
    nothing = SpanAnswer("", float(probabilities[-1]), 0, 0)
    if len(scores) > len(spans):
        found.insert(int((probabilities[:-1] > probabilities[-1]).sum()), nothing)
    abstains = not spans or (threshold is not None and odds > threshold)
    best = nothing if abstains else next(answer for answer in found if answer is not nothing)
    return SpanAnswer(
        best.text, best.probability, best.start, best.end, null_odds=odds, alternatives=tuple(found),
        end_before_start=contradicts,
    )  # fmt: skip
