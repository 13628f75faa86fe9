"""Tensors of decoding, step by step: language models with their KV cache or recurrent state, and encoder-decoders."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, note, pluralize
from keel.explain.text_tokens import SINK, token_names
from keel.explain.trace.attention_kinds import MEMORY_KEY, MEMORY_VALUE
from keel.explain.trace.encoder_recording import watch_encoder
from keel.explain.trace.encoder_tracing import top_candidates
from keel.explain.trace.recurrent_kinds import DIRECTIONS
from keel.explain.trace.recurrent_recording import RunningState, watch_recurrent
from keel.explain.trace.seq2seq_recording import record_decoder_step, record_source
from keel.explain.trace.tensor_recorder import TensorRecorder
from keel.explain.trace.tensor_trace import MAX_TENSORS, TraceStep
from keel.explain.trace.trace_inputs import check_size, sequence_labels
from keel.explain.trace.transformer_kinds import NEXT_LOGITS, PROBABILITIES, SOURCE, TOKEN_IDS, TOKENS
from keel.explain.trace.transformer_recording import watch_transformer
from keel.generation.next_token import new_token_budget
from keel.model import Model
from keel.nn.kv_cache import KVCache
from keel.systems.gpt import GptPretraining
from keel.systems.rnn import RnnPretraining
from keel.systems.seq2seq import AttentionSource, Seq2seqDecoder
from keel.systems.transformer import EncoderMemory, TransformerDecoder
from keel.tasks.sequence_to_sequence import SequenceToSequence

NEW_TOKENS, NEW_TARGET_TOKENS = 4, 20
"""Tokens that are decoded by default: after a text, and of a target."""
NEXT_TOKEN = "next token"


class StepOutput(NamedTuple):
    """What a decoding step yields, beside what is recorded."""

    logits: Tensor  # [1, vocabulary]
    labels: dict[str, list[list[str]]]
    state: object


class DecodingLoop:
    """Greedy decoding, after the tokens of a given text if there are any."""

    def __init__(
        self,
        recorder: TensorRecorder,
        tokenizer: Tokenizer,
        run: Callable[[list[int]], StepOutput],
        end_id: int | None,
        on_event: OnEvent,
    ):
        self.recorder, self.tokenizer, self.run, self.end_id = recorder, tokenizer, run, end_id
        self.banned = torch.tensor([*({*tokenizer.special_ids} - {end_id})], dtype=torch.long)
        self.on_event = on_event

    def steps(
        self,
        first: list[int],
        given: Sequence[int],
        tokens: int,
        *,
        title: Callable[[int], str],
        network: str = "model",
        stop_at_end: bool,
        recorded: int = 0,
    ) -> list[TraceStep]:
        """A step that reads `first`, one for each `given` token, and at most `tokens` more; `title` is that of a step,
        counted from 0, and `recorded` the number of tensors of other steps."""
        found: list[TraceStep] = []
        cached = 0
        part = first
        for number in range(1 + len(given) + tokens):
            logits, labels, state = self.run(part)
            probabilities = logits.float().softmax(-1)
            self.recorder.add(NEXT_LOGITS, logits)
            self.recorder.add(PROBABILITIES, probabilities)
            is_given = number < len(given)
            chosen = given[number] if is_given else self._most_probable(probabilities[0])
            step = TraceStep(
                title=title(number),
                network=network,
                tensors=self.recorder.collect(),
                labels=labels,
                read=token_names(self.tokenizer, part),
                predictions={NEXT_TOKEN: top_candidates(probabilities[0], self._name)},
                chosen=self._name(chosen),
                cached=cached,
                cache_bytes=_cache_bytes(state),
            )
            found.append(step)
            recorded += len(step.tensors)
            cached = state.count if isinstance(state, KVCache) else 0
            if stop_at_end and not is_given and chosen == self.end_id:
                break
            if recorded + len(step.tensors) > MAX_TENSORS:
                what = f"a trace has at most {MAX_TENSORS:,} tensors"
                note(self.on_event, f"{what}: stopped after {pluralize(len(found), 'step')}")
                break
            part = [chosen]
        return found

    def _most_probable(self, probabilities: Tensor) -> int:
        return int(probabilities.index_fill(0, self.banned.to(probabilities.device), -1).argmax())

    def _name(self, number: int) -> str:
        return token_names(self.tokenizer, [number])[0]


def _cache_bytes(state: object) -> int:
    """Size of the keys and values in a KV cache; 0 for another state."""
    if not isinstance(state, KVCache):
        return 0
    return state.memory[..., : state.count, :].numel() * state.memory.element_size()


def trace_language_model(
    model: Model, objective: GptPretraining | RnnPretraining, text: str, tokens: int, on_event: OnEvent
) -> list[TraceStep]:
    """A text and some tokens after it: a GPT reads the text at once, a recurrent network token by token."""
    tokenizer = model.tokenizer
    prompt = tokenizer.encode(text).ids
    if not prompt:
        raise UsageError("the text has no tokens: give a text with words")
    check_size(1 + len(prompt) + tokens)
    fits = min(tokens, new_token_budget(objective, [prompt], max(1, tokens)))
    if fits < tokens:
        note(on_event, f"the context window has room for {fits:,} of {tokens:,} tokens after this text")
    state: Any = objective.new_state(1)
    seen = [SINK] if getattr(model.encoder, "sink", None) is not None else []
    with TensorRecorder() as recorder:
        runs = watch_recurrent(recorder, model.encoder)
        if runs is None:
            watch_transformer(recorder, model.encoder)

        def run(part: list[int]) -> StepOutput:
            nonlocal state, seen
            logits, state = objective.step(torch.tensor([part], device=model.device), state, recorder)
            names = token_names(tokenizer, part)
            if runs is not None:
                RunningState(runs).record(recorder, 0)
                runs.clear()
                return StepOutput(logits, {TOKENS: [names], DIRECTIONS: [names]}, state)
            own = [*seen, *names] if len(seen) < 2 else names  # the sink is read with the first tokens
            seen = [*seen, *names]
            return StepOutput(logits, {TOKENS: [own], "queries": [own], "keys": [seen]}, state)

        loop = DecodingLoop(recorder, tokenizer, run, objective.eos_id, on_event)
        ends = model.system.default_sentences == "none"
        first, given = ([objective.bos_id, *prompt], []) if runs is None else ([objective.bos_id], prompt)

        def title(number: int) -> str:
            if number > len(given):
                return f"decoding step {number - len(given)}"
            return "text" if runs is None else f"time step {number + 1}"

        return loop.steps(first, given, fits, title=title, stop_at_end=ends)


def trace_encoder_decoder(
    model: Model, task: SequenceToSequence, text: str, target: str, tokens: int, on_event: OnEvent
) -> list[TraceStep]:
    """The encoder, what it yields for all steps of the decoder, and the decoder step by step: with the tokens of the
    target, or those that are most probable."""
    system, decoder, device = model.system, task.decoder, model.device
    inputs = system.build_inputs(task.tokenizer, task.tokenizer.encode(text).ids)
    given = task.target_tokenizer.encode(target).ids
    longest = max(len(inputs.ids), len(given) + 1)
    if longest > system.max_length:
        what = f"a text has {longest:,} tokens with special tokens, and this model reads at most {system.max_length:,}"
        raise UsageError(f"{what}: give a shorter one")
    check_size(len(inputs.ids) + len(given))
    batch = TokenBatch.pad([inputs.ids]).to(device)
    names = token_names(task.tokenizer, inputs.ids)
    labels = {**sequence_labels(model.encoder, [names]), SOURCE: [names]}
    with TensorRecorder() as recorder:
        tensors = watch_encoder(recorder, model.encoder)
        output = model.encoder(batch)
        source = decoder.project_source(output, batch)
        if isinstance(source, EncoderMemory):
            for layer in range(source.vectors.shape[1]):
                for number, kind in enumerate((MEMORY_KEY, MEMORY_VALUE)):
                    recorder.add(kind, source.vectors[:, layer, number], layer + 1)
        elif isinstance(source, AttentionSource):
            record_source(recorder, source)
        found = tensors.steps(TraceStep(title="encoder", network="encoder", tensors=[], labels=labels, read=names))
        if isinstance(decoder, TransformerDecoder):
            watch_transformer(recorder, decoder)
        state: Any = decoder.new_state(source, 1)
        read: list[str] = []

        def run(part: list[int]) -> StepOutput:
            nonlocal state, read
            ids = torch.tensor([part], device=device)
            recorder.add(TOKEN_IDS, ids)
            weights: list[Tensor] = []
            before = state
            vectors, state = decoder(ids, source, before, record=lambda name, layer, value: weights.append(value))
            if isinstance(decoder, Seq2seqDecoder):
                assert isinstance(source, AttentionSource)
                record_decoder_step(recorder, decoder, source, output.top, ids, (before, state), (weights[0], vectors))
            own = token_names(task.target_tokenizer, part)
            read = [*read, *own]
            along = {TOKENS: [own], "queries": [own], "keys": [read], SOURCE: [names], DIRECTIONS: [own]}
            return StepOutput(decoder.logits(vectors[:, -1]), along, state)

        loop = DecodingLoop(recorder, task.target_tokenizer, run, task.target_tokenizer.sep_id, on_event)
        most = 0 if given else min(tokens, task.max_new_tokens(batch.lengths.cpu().numpy())[0] - 1)
        start = [task.target_tokenizer.cls_id]
        count = sum(len(step.tensors) for step in found)
        steps = loop.steps(
            start,
            given,
            most,
            title=lambda number: f"decoder step {number + 1}",
            network="decoder",
            stop_at_end=True,
            recorded=count,
        )
        return [*found, *steps]
