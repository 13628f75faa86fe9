"""The trained model of an experiment, and texts in its language."""

from dataclasses import replace
from typing import Literal

import torch

import keel
from keel.claims.claim import Say

Language = Literal["en", "zh"]
BUNDLED = "chinese"
"""The model of experiments on trained weights, unless another one is given."""
PARAGRAPHS: dict[Language, tuple[str, ...]] = {
    "en": (
        "The ferry left the harbour at six in the morning, while most of the town was still asleep. Nobody on board "
        "knew how long the crossing would take, because the weather had changed during the night. By noon the wind "
        "had dropped, and the passengers came up on deck to look for the coast.",
        "A baker in our street opens his shop before sunrise and sells everything by nine. He learned the trade from "
        "his aunt, who never wrote down a single recipe. When a customer wanted to know the secret of the rye bread, "
        "he answered that it needed patience and nothing else.",
        "Rivers carry sand and small stones towards the sea. Where the water slows down, the heavy grains sink first, "
        "and the light ones travel further. Over thousands of years these layers become rock, in which geologists "
        "read how strong the current once was.",
        "The committee decided on Tuesday about the new library. Two members wanted to keep the old building, but the "
        "roof would cost more than a new house. In the end they voted for a compromise: the hall stays, and the "
        "reading room moves to the former school.",
    ),
    "zh": (
        "渡船早上六点离开港口，那时镇上的大多数人还在睡觉。船上没有人知道要走多久，因为夜里天气变了。到了中午风小了，"
        "乘客们走上甲板，寻找远处的海岸。",
        "我们街上的面包师每天日出以前开门，九点就卖完了。他的手艺是跟姑妈学的，姑妈从来没有写下一张配方。有顾客问他黑麦"
        "面包的秘密，他回答说只需要耐心。",
        "河流把沙子和小石头带向大海。水流慢下来的地方，重的颗粒先沉下去，轻的走得更远。经过几千年，这些沙层变成了岩石，"
        "地质学家从中看出当年的水流有多强。",
        "委员会星期二开会，决定新图书馆的事情。两位委员想保留旧楼，可是修屋顶比盖新房子还贵。最后他们通过了折中的办法："
        "大厅留下，阅览室搬到从前的学校里。",
    ),
}
"""Paragraphs of some 60 tokens, written for these experiments."""


def model_and_language(model: keel.Model | None, say: Say) -> tuple[keel.Model, Language]:
    """The given model or the bundled one, and its language: Chinese, if it has tokens for Chinese characters."""
    if model is None:
        say.progress(f"model: {BUNDLED}, which comes with Keel; choose another one with --model")
        model = keel.Model.load(BUNDLED)
    text, tokenizer = PARAGRAPHS["zh"][0], model.tokenizer
    ids = tokenizer.encode(text).ids
    unknown = tokenizer.unknown_id if tokenizer.has_special_token("unk") else -1
    is_chinese = len(ids) <= len(text) and ids.count(unknown) <= len(text) // 20
    return model, "zh" if is_chinese else "en"


def untrained_twin(model: keel.Model) -> keel.Model:
    """The same network with new random weights."""
    torch.manual_seed(0)
    encoder = model.system.build_encoder(model.encoder.vocab_size).to(model.device).eval()
    return replace(model, encoder=encoder, objective=None, task=None)
