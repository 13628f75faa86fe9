"""Names in Chinese text: a BiLSTM-CRF on characters against a CRF with hand-made features, on small slices of MSRA.

The CRF has the characters, bigrams and trigrams in a window of five (c1 = c2 = 0.1). A slice has 1,350 training
sentences, the size of Weibo NER, and 1,000 test sentences: slice 0 the first ones after a shuffle, slice 1 the next,
and so on. Entity F1 of each seed, and CPU seconds of training.

    pip install sklearn-crfsuite==0.5.0
    python benchmarks/chinese_tagging.py --folder msra_ner_split --slices 0 1 2 3 --seeds 3
    python benchmarks/chinese_tagging.py --folder msra_ner_split --slices 0 --seeds 1 --encoder chinese --alone
"""

import argparse
import random
import time
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from keel.api.evaluation import evaluate
from keel.api.finetuning import finetune
from keel.data.examples import Examples
from keel.data.predictions import TagPredictions
from keel.data.tagged_sentences import read_tagged_sentences
from keel.metrics.tagging_scores import score_tags

TRAINING, TESTS = 1350, 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="with train.txt and dev.txt, .xz or not")
    parser.add_argument("--slices", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="also without n-gram scores")
    parser.add_argument("--encoder", help="a pre-trained encoder to fine-tune as well, by its defaults")
    parser.add_argument("--precision", default="auto", help="its precision: bf16 is faster on recent CPUs")
    parser.add_argument("--alone", action="store_true", help="without the CRF and the BiLSTM-CRF")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lstm = {"model": "word2vec", "network": "lstm", "crf": True}
    runs: dict[str, dict[str, Any]] = {} if options.alone else {"BiLSTM-CRF": lstm}
    if options.plain:
        runs |= {"without n-gram scores": lstm | {"window_ngrams": 0}}
    if options.encoder:
        runs |= {options.encoder: {"model": options.encoder, "precision": options.precision}}
    files = [next(options.folder.glob(f"{name}.txt*")) for name in ("train", "dev")]
    train, test = (shuffled(read_tagged_sentences(path)) for path in files)
    for number in options.slices:
        part = train.take(range(TRAINING * number, TRAINING * (number + 1)))
        tested = test.take(range(TESTS * number, TESTS * (number + 1)))
        began = time.process_time()
        if not options.alone:
            print(f"slice {number}: CRF with hand-made features {crf_f1(part, tested):.4f}", end=" ")
            print(f"({time.process_time() - began:.0f} s)", flush=True)
        for name, run in runs.items():
            began, found = time.process_time(), []
            for seed in range(options.seeds):
                found.append(keel_f1(part, tested, seed, **run))
                print(f"  seed {seed}: {found[-1]:.4f}", flush=True)
            seconds = (time.process_time() - began) / len(found)
            print(f"slice {number}: {name} {mean(found):.4f} ({seconds:.0f} s)", flush=True)


def shuffled(examples: Examples) -> Examples:
    order = list(range(len(examples)))
    random.Random(0).shuffle(order)
    return examples.take(order)


def keel_f1(train: Examples, test: Examples, seed: int, model: str, **settings: Any) -> float:
    """Entity F1 by defaults, on all training sentences."""
    settings |= {"task": "tag", "dev": None, "progress": False}
    tagger = finetune(model, train, seed=seed, threads=1, device="cpu", **settings)
    return evaluate(tagger, test).values["entity_f1"].value


def crf_f1(train: Examples, test: Examples) -> float:
    """The same of sklearn-crfsuite, by Keel's scores."""
    settings = {"c1": 0.1, "c2": 0.1, "max_iterations": 200, "all_possible_transitions": True}
    crf: Any = import_module("sklearn_crfsuite").CRF(algorithm="lbfgs", **settings)
    crf.fit([features(each.words) for each in train], [list(each.names) for each in train])
    tags = [tag for sentence in crf.predict([features(each.words) for each in test]) for tag in sentence]
    numbers = {name: number for number, name in enumerate(train.labels.names)}
    ids = np.array([numbers[tag] for tag in tags])
    texts = [(each.text, each.words) for each in test]
    predictions = TagPredictions(train.labels, np.ones(len(ids), np.float32), ids, texts)
    return score_tags(test, predictions).values["entity_f1"].value


def features(words: tuple[str, ...]) -> list[list[str]]:
    """Offset and text of the n-grams within two characters of each character."""
    padded = ["^", "^", *words, "$", "$"]
    ngrams = [(start, size) for size in (1, 2, 3) for start in range(6 - size)]
    return [
        [f"{start}:{''.join(padded[place + start : place + start + size])}" for start, size in ngrams]
        for place in range(len(words))
    ]


if __name__ == "__main__":
    main()
