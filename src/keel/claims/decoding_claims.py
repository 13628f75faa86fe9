"""Claims about how a trained network writes."""

import itertools
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import keel
from keel.claims.claim import Finding, Say
from keel.generation.beam_search import BeamSearch, beam_search
from keel.systems.rnn import Rnn, RnnPretraining

SENTENCES = (
    *(("one", animal, "sleeps") for animal in ("cat", "dog", "bird", "horse", "mouse") for _ in range(5)),
    *(("two", "sailors", "sing") for _ in range(15)),
    *(("three", "cooks", "wait") for _ in range(10)),
)
"""A sentence begins with "one" most often, but none of those is as frequent as "two sailors sing"."""


class Heard:
    """A writer that keeps what it is fed with."""

    def __init__(self, writer: RnnPretraining):
        self.writer, self.bos_id, self.eos_id, self.new_state = writer, writer.bos_id, writer.eos_id, writer.new_state
        self.max_context, self.fed = writer.max_context, list[list[int]]()

    def step(self, ids: Tensor, state: Any, record: Any = None) -> tuple[Tensor, Any]:
        self.fed.append(ids[:, -1].tolist())
        return self.writer.step(ids, state)


def what_is_fed(say: Say) -> Finding:
    """57: what a network reads in the next step: words or a distribution, the beam's words or the likeliest one."""
    with tempfile.TemporaryDirectory() as folder:
        sentences = [" ".join(words) for words in SENTENCES] * 40
        random.Random(0).shuffle(sentences)
        text = keel.Corpus.of(["\n".join(sentences)])
        system = Rnn(width=32, dropout=0.0, bptt=16)
        settings: dict[str, Any] = {
            "steps": 300,
            "batch": 16,
            "lr": 1e-2,
            "evaluate_every": 0,
            "threads": 1,
            "device": "cpu",
        }
        out = Path(folder) / "model"
        settings |= {"tokenizer": "words", "sentences": "lines", "held_out": 0.0}
        model = keel.pretrain(system, text, out=out, on_event=say.on_event, **settings)
    writer, tokenizer = model.objective, model.tokenizer
    assert isinstance(writer, RnnPretraining)
    writer.eval()
    # After some sentences: a network that read on and on has never met an empty state.
    before = [*tokenizer.encode(" ".join(SENTENCES[0])).ids, writer.eos_id] * 3
    found = {}
    for beams in (1, 3):
        heard = Heard(writer)
        ((best,),) = beam_search(heard, [before], BeamSearch(beams=beams, length_penalty=0.0), max_new_tokens=6)
        found[beams] = best
        chance = torch.tensor(best.log_prob).exp().item()
        say(f"beam {beams}: {tokenizer.decode(best.ids)!r}, p = {chance:.3f}")
        for step, fed in enumerate(heard.fed[1:3], 2):
            say(f"  fed into step {step}: {', '.join(tokenizer.token_of(number) for number in fed)}")
    first, definite, mixed = (tokenizer.token_of(int(chances.argmax())) for chances in _second_words(writer, before))
    say(f"the likeliest first word is {first!r}; fed with it, the network goes on with {definite!r}")
    say(f"fed with all first words, each as much as it is likely, it goes on with {mixed!r}")
    met, said = {words[:2] for words in SENTENCES}, (first, mixed)
    gain = found[3].log_prob - found[1].log_prob
    return Finding(
        gain > 0.5 and (first, definite) in met and said not in met,
        f"each hypothesis is fed with its own last word, and so a beam of 3 finds a text that is "
        f"{torch.tensor(gain).exp().item():.1f} times as likely as that of the likeliest words; fed with a "
        f"distribution the network mixes its sentences up ({' '.join(said)!r} is in none)",
    )


SUBJECTS = {"i": "我", "you": "你", "he": "他", "she": "她", "we": "我们", "they": "他们"}
VERBS = {"love": "爱", "see": "看见", "leave": "离开", "remember": "记得", "paint": "画", "visit": "参观"}
OBJECTS = {"beijing": "北京", "shanghai": "上海", "london": "伦敦", "paris": "巴黎", "rome": "罗马", "snow": "雪"}


def i_love_beijing(say: Say) -> Finding:
    """58: a small Transformer learns from 180 pairs to translate the 36 that it has not met."""
    words = [[*enumerate(part.items())] for part in (SUBJECTS, VERBS, OBJECTS)]
    taught: list[tuple[str, str]] = []
    asked: list[tuple[str, str]] = []
    for parts in itertools.product(*words):
        pair = tuple(" ".join(pair[side] for _, pair in parts) for side in (0, 1))
        # In each six of them one is left out; every two words of it come together in others.
        (asked if sum(number for number, _ in parts) % 6 == 0 else taught).append((pair[0], pair[1]))
    with tempfile.TemporaryDirectory() as folder:
        shape = {"layers": 1, "decoder_layers": 1, "width": 64, "head_dim": 32, "dropout": 0.0}
        plan = {"epochs": 40, "batch": 32, "lr": 3e-3, "device": "cpu", "threads": 1, "dev": "none"}
        model = keel.finetune(
            "transformer", taught, task="seq2seq", out=f"{folder}/model", on_event=say.on_event, **shape, **plan
        )
        sources, targets = zip(*asked, strict=True)
        written = keel.translate(sources, model=model, trace=f"{folder}/trace.json")
        told = json.loads(Path(f"{folder}/trace.json").read_text(encoding="utf-8"))["texts"]
    right = sum(one.text == other for one, other in zip(written, targets, strict=True))
    say(f"{len(taught)} pairs are taught; of {len(asked)} others {right} are translated to the letter")
    text = told[sources.index("i love beijing")]
    for place in text["path"]:
        node = text["hypotheses"][place]
        weights = node["attention"]["cross_attention"][0]
        most = max(range(len(weights)), key=weights.__getitem__)
        say(
            f"  step {node['step']}: {node['token'].strip()} (p = {node['probability']:.2f}), looking most at "
            f"{text['source'][most].strip()!r} ({weights[most]:.0%})"
        )
    answer = written[sources.index("i love beijing")].text
    return Finding(
        answer == "我 爱 北京" and right > 0.9 * len(asked),
        f"'i love beijing', which was never taught, becomes {answer!r}; {right} of {len(asked)} new sentences are "
        "right",
    )


@torch.no_grad()
def _second_words(writer: RnnPretraining, before: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """[words] each: how likely each word is to be first, then second after the likeliest first one, and then after the
    mean of all first words' vectors, weighted by how likely they are."""
    first, state = writer.step(torch.tensor([[writer.bos_id, *before]]), writer.new_state(1))
    second, _ = writer.step(first.argmax(1, keepdim=True), state)
    mean = first.softmax(1) @ writer.encoder.words.weight  # [1, width]
    layers, _ = writer.encoder.forwards(mean[:, None], state=state)
    table = writer.encoder.words.weight if writer.output is None else writer.output
    mixed = torch.addmm(writer.bias, layers[-1][:, -1], table.T)
    return first[0].softmax(0), second[0].softmax(0), mixed[0].softmax(0)
