import time
from pathlib import Path

import pytest

from keel.data.corpus import Corpus
from keel.data.sentence_splitting import split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["Mr. Smith met Dr. J. K. Rowling at 5 p.m. on Jan. 5.", "He paid $3.50!", "Really?"],
        ["The U.S. Senate met.", "It was in the U.S.", "The law, cf. No. 5 and Fig. 3, passed."],
        ['"Stop!" she said.', '"Why?"', "He left."],
        ["He paused... then went on.", "Then he left...", "Nobody saw it."],
        ["(He was late.)", "[It rained.]", "“So what?”", "’Twas nothing."],
        ["It costs 3.14 at example.com today, i.e. nothing.", "1990 was worse.[12]", "No more."],
        ["Acme Inc. and Smith & Co. Ltd. merged.", "She said no.", "Then yes!!!", "OK?!"],
        ["Was it Yahoo! or e.g. Google that asked?", "Élan was lost."],
    ],
)
def test_english(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["数学是科学。", "你好吗？", "太好了！！", "真的?", "是的!", "好。"],
        ["他说：“你好！”", "然后走了。", "《你是谁？》", "是书名。"],
        ["“是的。”，他说。", "「再见。」", "她哭了……", "他走了。"],
        ["他用iPhone 3.5上网。", "E.T.贝尔是数学家。", "Hello world. ", "你好。"],
        ["结束了？！", "（完。）", "没有句号"],
    ],
)
def test_chinese_and_mixed(sentences: list[str]) -> None:
    assert split_sentences("".join(sentences)) == [sentence.strip() for sentence in sentences]


def test_lines_end_sentences_and_space_is_none() -> None:
    assert split_sentences("a title\n\n\tIt begins. \n") == ["a title", "It begins."]
    assert split_sentences(" \n \n") == []
    assert split_sentences("") == []


def test_nothing_but_space_is_lost() -> None:
    text = '…?! . ( "a." B. c! D。”E……“F！」 1. 2) .\u3000G.\xa0H?\u2028I'
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


@pytest.mark.parametrize("unit", [".", "。", "…", "? ", '."', "a.", "……”", "[1]", ". [1"])
def test_hostile_runs_take_linear_time(unit: str) -> None:
    start = time.process_time()
    split_sentences("A" + unit * 200_000)
    assert time.process_time() - start < 2


def test_speed_has_not_collapsed(data_dir: Path) -> None:
    blocks = [block.text for block in Corpus(data_dir / "corpora/en_wikinews.txt.xz").blocks()][:4000]
    size = sum(map(len, blocks))

    def seconds() -> float:
        start = time.process_time()
        for text in blocks:
            split_sentences(text)
        return time.process_time() - start

    # 76 MB/s when this was written; benchmarks/encode.py measures it, this only guards it on a busy machine.
    assert size / min(seconds() for _ in range(3)) > 20e6
