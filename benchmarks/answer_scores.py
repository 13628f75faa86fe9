"""EM and F1 of span answers beside the official scripts, on adversarial predictions: the number of differences is 0.

    python benchmarks/answer_scores.py DATA --squad1 evaluate-v1.1.py --squad2 evaluate-v2.0.py \\
        --cmrc cmrc2018_evaluate.py

DATA holds tasks/squad and tasks/zh/cmrc2018. Each prediction is a gold answer, a span of the passage, the answer to
another question or nothing, with up to --edits random edits (case, punctuation, articles, whitespace, full-width
characters, contractions, Chinese and English mixed). CMRC's script needs nltk (3.6 to 3.9.2). With nltk's punkt_tab
(in NLTK_DATA) it is also run with sentence splitting, which Keel leaves out: the last line counts what this changes.
"""

import argparse
import importlib.util
import json
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from keel.data.text_files import open_bytes
from keel.metrics.squad_scores import AnswerScorer, answer_language, best_null_threshold

PUNCTUATION = [
    *string.punctuation,
    *"，。：？！“”；’‘《》…·、「」（）－～『』«»„—–【】％",
    "……",
    "''",
    "``",
    "...",
    "--",
    '"',
]
WHITESPACE = [" ", "  ", "\t", "\n", "\xa0", "\u3000", "\u200b"]
WORDS = ["the", "a", "An", "The", "theatre", "a.m.", "U.S.", "don't", "it's", "we'll", "'tis", "cannot", "gonna", "n't"]
WORDS += [
    "1,000",
    "3.14",
    "$5",
    "50%",
    "Ⅳ",
    "１９９８",
    "naïve",
    "İstanbul",
    "Straße",
    "ſ",
    "e\u0301",
    "😀",
    "한국",
    "かな",
]
WORDS += ["北京", "的", "第3", "年", "㐀", "龥龦", "Dr.", "e.g.", "'s", "wanna be", "d'ye", "more'n", "more.", "(etc.)"]
FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}

Totals = Callable[[list[dict[str, Any]], dict[str, str]], tuple[float, float]]
"""EM and F1 of a dataset and predictions by an official script, times 100."""


@dataclass(frozen=True)
class Question:
    passage: str
    gold: list[str]


def read_questions(path: Path) -> list[Question]:
    with open_bytes(path) as file:
        return [
            Question(paragraph["context"], [answer["text"] for answer in question["answers"]])
            for article in json.load(file)["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]


def make_prediction(questions: Sequence[Question], question: Question, edits: int, rng: random.Random) -> str:
    passage = question.passage
    start = rng.randrange(len(passage))
    other = rng.choice(questions).gold
    text = rng.choice(
        [
            *[rng.choice(question.gold or [""])] * 5,
            *[passage[start : start + rng.randint(1, 60)]] * 3,
            rng.choice(other or [""]),
            rng.choice(["", " ", "the", "。", "."]),
        ]
    )
    for _ in range(rng.randint(0, edits)):
        text = edit(text, rng)
    return text


def edit(text: str, rng: random.Random) -> str:
    place, end = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    before, middle, after = text[:place], text[place:end], text[end:]
    match rng.randrange(9):
        case 0:
            return before + rng.choice([str.upper, str.lower, str.title, str.swapcase])(middle) + after
        case 1 | 2:
            return before + rng.choice(PUNCTUATION) + middle + rng.choice(["", *PUNCTUATION]) + after
        case 3:
            return before + rng.choice(WHITESPACE) + middle + rng.choice(WHITESPACE) + after
        case 4 | 5:
            space = rng.choice(["", " "])
            return before + space + rng.choice(WORDS) + space + middle + after
        case 6:
            return before + middle.translate(FULL_WIDTH) + after
        case 7:
            return before + after
        case _:
            return before + after + middle


def load_script(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_").replace(".", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def squad1_totals(script: Any, dataset: list[dict[str, Any]], predictions: dict[str, str]) -> tuple[float, float]:
    found = script.evaluate(dataset, predictions)
    return found["exact_match"], found["f1"]


def squad2_totals(script: Any, dataset: list[dict[str, Any]], predictions: dict[str, str]) -> tuple[float, float]:
    found = script.make_eval_dict(*script.get_raw_scores(dataset, predictions))
    return found["exact"], found["f1"]


def cmrc_totals(script: Any, dataset: list[dict[str, Any]], predictions: dict[str, str]) -> tuple[float, float]:
    # The script fails without a gold answer, which CMRC always has.
    f1, exact, *_ = script.evaluate({"data": dataset}, predictions)
    return exact, f1


def as_dataset(questions: Sequence[Question]) -> list[dict[str, Any]]:
    items = ({"id": str(n), "answers": [{"text": text} for text in each.gold]} for n, each in enumerate(questions))
    return [{"paragraphs": [{"qas": [item]}]} for item in items]


def compare(name: str, questions: list[Question], predictions: list[str], totals: Totals) -> np.ndarray:
    """Compare each score and the totals; returns which questions differ."""
    language = answer_language(each.passage for each in questions)
    scorer = AnswerScorer(language)
    ours = [(scorer.exact_match(p, q.gold), scorer.f1(p, q.gold)) for q, p in zip(questions, predictions, strict=True)]
    dataset, by_id = as_dataset(questions), {str(n): text for n, text in enumerate(predictions)}
    theirs = [totals([item], {str(n): by_id[str(n)]}) for n, item in enumerate(dataset)]
    differ = np.array([(100 * exact, 100 * f1) != peer for (exact, f1), peer in zip(ours, theirs, strict=True)])
    own = [100 * fmean(column) for column in zip(*ours, strict=True)]
    official = totals(dataset, by_id)
    print(
        f"{name} ({language}): {differ.sum()} of {len(differ):,} predictions differ; "
        f"EM {own[0]:.4f}, F1 {own[1]:.4f}; official EM {official[0]:.4f}, F1 {official[1]:.4f}"
    )
    return differ


def compare_threshold(script: Any, questions: list[Question], predictions: list[str], rng: random.Random) -> None:
    scorer = AnswerScorer("english")
    f1 = [scorer.f1(text, question.gold) for question, text in zip(questions, predictions, strict=True)]
    answerable = [bool(question.gold) for question in questions]
    # Odds that know something: the best threshold is neither none nor all.
    odds = [rng.random() + (0.3 if not known else 0.0) for known in answerable]
    threshold, score = best_null_threshold(np.array(odds), np.array(f1), np.array(answerable))
    # The script asks whether an answer is "", where its scores ask whether it has words: "the" counts as none here.
    texts = dict(enumerate(text if scorer.tokens(text) else "" for text in predictions))
    peer = script.find_best_thresh(texts, *(dict(enumerate(column)) for column in (f1, odds, answerable)))
    print(f"null threshold {threshold!r} with F1 {100 * score:.6f}; official {peer[1]!r} with F1 {peer[0]:.6f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--squad1", type=Path, required=True, help="evaluate-v1.1.py")
    parser.add_argument("--squad2", type=Path, required=True, help="evaluate-v2.0.py")
    parser.add_argument("--cmrc", type=Path, required=True, help="cmrc2018_evaluate.py, the version for Python 3")
    parser.add_argument("--count", type=int, default=10_000, help="predictions for each dataset [10000]")
    parser.add_argument("--edits", type=int, default=4, help="random edits of a prediction at most [4]")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, tasks = random.Random(options.seed), options.data / "tasks"

    def sample(path: Path) -> tuple[list[Question], list[str]]:
        all_questions = read_questions(path)
        questions = (rng.sample(all_questions, len(all_questions)) * options.count)[: options.count]
        return questions, [make_prediction(all_questions, each, options.edits, rng) for each in questions]

    questions, predictions = sample(next((tasks / "squad").glob("dev-v1.1*")))
    differ = compare("SQuAD 1.1", questions, predictions, partial(squad1_totals, load_script(options.squad1)))
    scorer = AnswerScorer("english")
    wordless = sum(not all(map(scorer.tokens, questions[n].gold)) for n in np.flatnonzero(differ))
    print(f"  {wordless} of these differences have a gold answer without words, where Keel follows SQuAD 2.0")

    script = load_script(options.squad2)
    questions, predictions = sample(next((tasks / "squad").glob("dev-v2.0*")))
    compare("SQuAD 2.0", questions, predictions, partial(squad2_totals, script))
    compare_threshold(script, questions, predictions, rng)

    script = load_script(options.cmrc)
    questions, predictions = sample(next((tasks / "zh" / "cmrc2018").glob("dev.json*")))
    word_tokenize = script.nltk.word_tokenize
    script.nltk.word_tokenize = partial(word_tokenize, preserve_line=True)
    name = f"CMRC 2018, nltk {script.nltk.__version__}"
    compare(name, questions, predictions, partial(cmrc_totals, script))
    script.nltk.word_tokenize = word_tokenize
    try:
        word_tokenize("punkt")
    except LookupError:
        print("sentence splitting by punkt is not compared: nltk finds no punkt_tab")
    else:
        compare(f"{name} with punkt", questions, predictions, partial(cmrc_totals, script))


if __name__ == "__main__":
    main()
