"""Sentences whose words stand in known relations: of a treebank, or generated."""

from pathlib import Path
from random import Random
from typing import NamedTuple

import keel
from keel.claims.example_texts import Language
from keel.data.text_files import open_text


class Relation(NamedTuple):
    """A dependency between two words of a sentence, by their indices."""

    name: str
    dependent: int
    head: int


class AnnotatedSentence(NamedTuple):
    """Words, and the relations between them."""

    words: list[str]
    relations: list[Relation]


class Reference(NamedTuple):
    """A sentence with a pronoun that agrees with one of two nouns only, by their indices."""

    words: list[str]
    pronoun: int
    nouns: tuple[int, int]
    antecedent: int
    """0 or 1: the noun that the pronoun stands for."""


def read_treebank(folder: Path, split: str) -> list[AnnotatedSentence]:
    """The sentences of a split of a treebank in CoNLL-U format, without punctuation relations and subtypes."""
    files = sorted(folder.glob(f"*{split}*.conllu*"))
    if not files:
        what = f"{folder} has no file *{split}*.conllu"
        raise keel.UsageError(f"{what}: use --data with the folder of a treebank (CoNLL-U) that has dev and test files")
    found, words, relations = [], list[str](), list[Relation]()
    for _, line in [*open_text(files[0]), (0, "")]:
        cells = line.split("\t")
        if not line and words:
            found.append(AnnotatedSentence(words, relations))
            words, relations = [], []
        elif cells[0].isdigit() and len(cells) == 10:
            name = cells[7].partition(":")[0]
            if name not in ("root", "punct"):
                relations.append(Relation(name, len(words), int(cells[6]) - 1))
            words.append(cells[1].replace(" ", ""))
    return found


WORDS = {
    "time": "昨天 今天 去年 最近 后来",
    "adverb": "已经 刚刚 终于 立刻 悄悄",
    "place": "花园 图书馆 车站 学校 市场 公园",
    "subject": "老师 学生 医生 工人 孩子 邻居 客人",
    "object": "书 桌子 箱子 照片 自行车 杯子 椅子",
    "quality": "年轻 漂亮 奇怪 普通 出名 可爱",
    "verb": "看见 寻找 找到 买 修理 介绍 喜欢",
    "numeral": "一 两 三 五",
}
CLASSIFIERS = {"书": "本", "桌子": "张", "照片": "张", "自行车": "辆", "椅子": "把"}


def generate_dependencies(count: int, random: Random) -> list[AnnotatedSentence]:
    """Chinese sentences of one verb; parts that may be left out vary the distance of related words."""
    return [_generate_dependencies(random) for _ in range(count)]


def _generate_dependencies(random: Random) -> AnnotatedSentence:
    words: list[str] = []
    relations: list[Relation] = []
    to_verb: list[tuple[str, int]] = []

    def add(word: str) -> int:
        words.append(word)
        return len(words) - 1

    def pick_one(kind: str) -> str:
        return random.choice(WORDS[kind].split())

    def is_included() -> bool:
        return random.random() < 0.6

    def add_noun_phrase(noun: str) -> int:
        modifiers: list[tuple[str, int]] = []
        if is_included():
            modifiers.append(("nummod", add(pick_one("numeral"))))
            add(CLASSIFIERS.get(noun, "个"))
        if is_included():
            modifiers.append(("amod", add(pick_one("quality"))))
            if is_included():
                add("的")
        head = add(noun)
        relations.extend(Relation(name, dependent, head) for name, dependent in modifiers)
        return head

    def add_adverb() -> None:
        to_verb.append(("advmod", add(pick_one("adverb"))))

    def add_place() -> None:
        add("在")
        to_verb.append(("obl", add(pick_one("place"))))

    if is_included():
        to_verb.append(("time", add(pick_one("time"))))
    to_verb.append(("nsubj", add_noun_phrase(pick_one("subject"))))
    for add_part in random.sample([add_adverb, add_place], 2):
        if is_included():
            add_part()
    verb = add(pick_one("verb"))
    add("了")
    to_verb.append(("obj", add_noun_phrase(pick_one("object"))))
    add("。")
    return AnnotatedSentence(words, [*relations, *(Relation(name, word, verb) for name, word in to_verb)])


NOUNS: dict[Language, dict[str, str]] = {
    "en": {
        "he": "king man boy father uncle prince waiter actor brother grandfather husband monk",
        "she": "queen woman girl mother aunt princess waitress actress sister grandmother wife nun",
        "it": "box bottle lamp table car boat clock piano bicycle statue basket wagon",
        "they": "boys soldiers doctors children students farmers guests women workers sailors men neighbors",
    },
    "zh": {
        "他": "国王 男孩 父亲 叔叔 王子 哥哥 爷爷 丈夫 男人 儿子",
        "她": "王后 女孩 母亲 阿姨 公主 姐姐 奶奶 妻子 女人 女儿",
        "它": "箱子 桌子 汽车 石头 钢琴 雕像 火车 篮子 房子 灯笼",
    },
}
"""Nouns by the only pronoun that agrees with them."""
PREDICATES: dict[Language, tuple[str, str, str]] = {
    "en": (
        "stood beside/came after/stopped near/blocked/touched", "because and but although while",
        "old late wet small heavy strange quiet",
    ),
    "zh": ("挡住了/靠近了/碰到了/超过了/遇到了", "因为 但是 而且 虽然 可是", "老 慢 湿 小 重 奇怪 安静"),
}  # fmt: skip
"""Verbs between the nouns, conjunctions, and adjectives that do not depend on the noun."""


def generate_references(language: Language, count: int, half: int, random: Random) -> list[Reference]:
    """Sentences whose pronoun agrees with one noun only, the first one in every second sentence; each `half` (0 or 1)
    has nouns of its own."""
    verbs, conjunctions, adjectives = PREDICATES[language]
    found = []
    for number in range(count):
        kinds = random.sample([*NOUNS[language]], 2)
        one, other = (random.choice(NOUNS[language][kind].split()[half::2]) for kind in kinds)
        verb, conjunction = random.choice(verbs.split("/")).split(), random.choice(conjunctions.split())
        adjective, antecedent = random.choice(adjectives.split()), number % 2
        pronoun = kinds[antecedent]
        if language == "en":
            start, middle = ["the", one], [*verb, "the", other]
            end = [conjunction, pronoun, "were" if pronoun == "they" else "was", "very", adjective, "."]
        else:
            start, middle = ["那个", one], [*verb, "那个", other]
            end = ["，", conjunction, pronoun, "很", adjective, "。"]
        words = [*start, *middle, *end]
        nouns = 1, len(start) + len(middle) - 1
        found.append(Reference(words, words.index(pronoun), nouns, antecedent))
    return found
