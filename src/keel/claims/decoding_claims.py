"""Claims about how a trained network writes."""

import itertools
import json
import math
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.small_models import pretrain_tiny
from keel.generation.beam_search import beam_search
from keel.systems.rnn import RnnPretraining

SENTENCES = (
    *(("one", animal, "sleeps") for animal in ("cat", "dog", "bird", "horse", "mouse") for _ in range(5)),
    *(("two", "sailors", "sing") for _ in range(15)),
    *(("three", "cooks", "wait") for _ in range(10)),
)
"""A sentence begins with "one" most often, but none of those is as frequent as "two sailors sing"."""


class RecordedInputs:
    """A language model that records its inputs."""

    def __init__(self, model: RnnPretraining):
        self.model, self.bos_id, self.eos_id, self.new_state = model, model.bos_id, model.eos_id, model.new_state
        self.max_context, self.fed = model.max_context, list[list[int]]()

    def step(self, ids: Tensor, state: Any, record: Any = None) -> tuple[Tensor, Any]:
        self.fed.append(ids[:, -1].tolist())
        return self.model.step(ids, state)


def next_step_input(say: Say) -> Verdict:
    """57: the input of the next decoding step: token or distribution, of each beam or the most probable one."""
    sentences = [" ".join(words) for words in SENTENCES] * 40
    random.Random(0).shuffle(sentences)
    system = keel.Rnn(width=32, dropout=0.0, bptt=16)
    trained = pretrain_tiny(system, ["\n".join(sentences)], say, sentences="lines", steps=300, batch=16, lr=1e-2)
    model, tokenizer = trained.objective, trained.tokenizer
    assert isinstance(model, RnnPretraining)
    # After some sentences, since the network was trained on a continuous stream without initial states.
    before = [*tokenizer.encode(" ".join(SENTENCES[0])).ids, model.eos_id] * 3
    found = {}
    for beams in (1, 3):
        recorded = RecordedInputs(model)
        ((best,),) = beam_search(recorded, [before], keel.BeamSearch(beams=beams, length_penalty=0.0), max_new_tokens=6)
        found[beams] = best
        say(f"beam {beams}: {tokenizer.decode(best.ids)!r}, p = {math.exp(best.log_prob):.3f}")
        for step, fed in enumerate(recorded.fed[1:3], 2):
            say(f"  input of step {step}: {', '.join(tokenizer.token_of(number) for number in fed)}")
    first, definite, mixed = (tokenizer.token_of(int(logits.argmax())) for logits in _second_words(model, before))
    say(f"most probable first word {first!r}; with it as input, the next word is {definite!r}")
    say(f"with the mean of all first words, weighted by probability, as input, the next word is {mixed!r}")
    bigrams, predicted = {words[:2] for words in SENTENCES}, (first, mixed)
    gain = found[3].log_prob - found[1].log_prob
    return Verdict(
        gain > 0.5 and (first, definite) in bigrams and predicted not in bigrams,
        "the input of each hypothesis is its own last token, and a beam of 3 finds a text that is "
        f"{math.exp(gain):.1f} times as probable as the greedy one; with a distribution as input the "
        f"network mixes its sentences ({' '.join(predicted)!r} is in none of them)",
    )


SUBJECTS = {"i": "我", "you": "你", "he": "他", "she": "她", "we": "我们", "they": "他们"}
VERBS = {"love": "爱", "see": "看见", "leave": "离开", "remember": "记得", "paint": "画", "visit": "参观"}
OBJECTS = {"beijing": "北京", "shanghai": "上海", "london": "伦敦", "paris": "巴黎", "rome": "罗马", "snow": "雪"}


def i_love_beijing(say: Say) -> Verdict:
    """58: a small Transformer trained on 180 sentence pairs translates 36 others."""
    words = [[*enumerate(part.items())] for part in (SUBJECTS, VERBS, OBJECTS)]
    train: list[tuple[str, str]] = []
    test: list[tuple[str, str]] = []
    for parts in itertools.product(*words):
        pair = tuple(" ".join(pair[side] for _, pair in parts) for side in (0, 1))
        # One in six is held out; every two of its words co-occur in training sentences.
        (test if sum(number for number, _ in parts) % 6 == 0 else train).append((pair[0], pair[1]))
    settings: dict[str, Any] = {
        "layers": 1, "decoder_layers": 1, "width": 64, "head_dim": 32, "dropout": 0.0,
        "epochs": 40, "batch": 32, "lr": 3e-3, "device": "cpu", "threads": 1,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        model = keel.finetune("transformer", train, task="seq2seq", dev=None, on_event=say.on_event, **settings)
        sources, targets = zip(*test, strict=True)
        written = keel.translate(sources, model=model, trace=f"{folder}/trace.json")
        trace = json.loads(Path(f"{folder}/trace.json").read_text(encoding="utf-8"))["texts"]
    right = sum(one.text == other for one, other in zip(written, targets, strict=True))
    say(f"trained on {len(train)} pairs; {right} of {len(test)} others are translated exactly")
    text = trace[sources.index("i love beijing")]
    for position in text["path"]:
        node = text["hypotheses"][position]
        weights = node["attention"]["cross_attention"][0]
        most = max(range(len(weights)), key=weights.__getitem__)
        attended = f"attends most to {text['source'][most].strip()!r} ({weights[most]:.0%})"
        say(f"  step {node['step']}: {node['token'].strip()} (p = {node['probability']:.2f}), {attended}")
    answer = written[sources.index("i love beijing")].text
    return Verdict(
        answer == "我 爱 北京" and right > 0.9 * len(test),
        f"'i love beijing', which is not in the training data, becomes {answer!r}; {right} of {len(test)} new "
        "sentences are correct",
    )


@torch.no_grad()
def _second_words(model: RnnPretraining, before: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [words] of the first word, of the second after the most probable first one, and of the second after
    the mean of all first words' vectors, weighted by probability."""
    first, state = model.step(torch.tensor([[model.bos_id, *before]]), model.new_state(1))
    second, _ = model.step(first.argmax(1, keepdim=True), state)
    mean = first.softmax(1) @ model.encoder.words.weight  # [1, width]
    layers, _ = model.encoder.forwards(mean[:, None], state=state)
    table = model.encoder.words.weight if model.output is None else model.output
    mixed = torch.addmm(model.bias, layers[-1][:, -1], table.T)
    return first[0], second[0], mixed[0]
