"""A claim about ERNIE: names that are masked as a whole ask for knowledge, single characters of them do not."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import mean_score, show_figure

FACTS = {
    "中华人民共和国的首都是{}。": "北京",
    "日本的首都是{}。": "东京",
    "法国的首都是{}。": "巴黎",
    "英国的首都是{}。": "伦敦",
    "德国的首都是{}。": "柏林",
    "俄罗斯的首都是{}。": "莫斯科",
    "美国的首都是{}。": "华盛顿",
    "意大利的首都是{}。": "罗马",
    "埃及的首都是{}。": "开罗",
    "泰国的首都是{}。": "曼谷",
    "广东省的省会是{}市。": "广州",
    "浙江省的省会是{}市。": "杭州",
    "四川省的省会是{}市。": "成都",
    "湖北省的省会是{}市。": "武汉",
    "韩国的首都是{}。": "首尔",
    "《西游记》的作者是{}。": "吴承恩",
    "《三国演义》的作者是{}。": "罗贯中",
    "《狂人日记》的作者是{}。": "鲁迅",
    "相对论是{}提出的。": "爱因斯坦",
    "苹果公司的创始人之一是{}。": "乔布斯",
}
"""Facts of an encyclopedia, with the name that the rest of the sentence tells."""
TEXT = "鲁迅出生于浙江绍兴，原名周树人，是中国现代文学的奠基人。"
ENTITIES = "鲁迅 浙江 绍兴 周树人 中国"


def masked_names(say: Say) -> Verdict:
    """119: log probability of the characters of a name, with the others of the name visible or masked."""
    model = keel.Model.load("chinese")
    alone, whole, words = [], [], []
    for text, name in FACTS.items():
        every = model.fill(text.format("[MASK]" * len(name)), top=len(model.tokenizer))
        for place, character in enumerate(name):
            shown = f"{name[:place]}[MASK]{name[place + 1 :]}"
            single = model.fill(text.format(shown), top=len(model.tokenizer))[0]
            for found, candidates in ((alone, single), (whole, every[place])):
                found.append(math.log(dict(candidates)[character]))
            words.append((single[0].word == character, every[place][0].word == character))
    gap = mean_score(np.array(alone) - np.array(whole))
    first, second = (np.mean(each) for each in zip(*words, strict=True))
    say(f"{len(FACTS)} facts, {len(alone)} characters of names; chinese predicts a masked character")
    say(f"the others of the name visible: loss {-np.mean(alone):.2f}, most probable in {first:.0%}")
    say(f"the whole name masked: loss {-np.mean(whole):.2f}, most probable in {second:.0%}")
    lengths = sorted({len(name) for name in FACTS.values()})
    leaks = ", ".join(f"{1 - 0.15 ** (length - 1):.1%} of {length} characters" for length in lengths)
    say(f"with 15% of single characters masked, another one is visible in names: {leaks}")
    with TemporaryDirectory() as folder:
        names = Path(folder) / "names.txt"
        names.write_text("\n".join(ENTITIES.split()), encoding="utf-8")
        show_figure(say, "units", text=TEXT, entities=names)
    return Verdict(
        (gap.low or 0) > 0 if (gap.low or 0) * (gap.high or 0) > 0 else None,
        f"masking the whole name raises the loss of its characters by {gap:.2f}: with single characters masked, the "
        "rest of the name gives much of the answer",
    )
