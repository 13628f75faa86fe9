"""What a pre-trained model can do before fine-tuning, as lines of JSON: what the card of a bundled model states.

    python benchmarks/h200/model_scores.py encoder run/english --tasks tasks/
    python benchmarks/h200/model_scores.py gpt run/english-gpt --tasks tasks/ --real text/wikinews.txt.xz

encoder: how many of 100 capitals are among the five most probable words of "The capital of France is [MASK]." (the
pairs of Google's analogies), and STS-B by cosines of sentence embeddings (Spearman's correlation times 100). gpt:
bits per byte of WikiText-2, LAMBADA, and distinct-4, different 4-grams of words over all of them, in 100 sampled
paragraphs beside 100 real ones.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gpt import plain

import keel
from keel.data.text_files import open_text

T = TypeVar("T")
PARAGRAPHS = 100
WORDS = 80


def capitals(model: keel.Model, tasks: Path, count: int = 100) -> dict[str, Any]:
    pairs = dict(islice(country_capitals(tasks / "google_analogies" / "questions-words.txt.xz"), count))
    mask = model.tokenizer.token_of(model.tokenizer.mask_id)
    found = {}
    for country, capital in pairs.items():
        words = model.fill(f"The capital of {country} is {mask}.", top=5)[0]
        found[capital] = capital.lower() in [each.word.lower() for each in words]
    known = [name for name, hit in found.items() if hit]
    return {"score": "capitals", "hits": len(known), "of": len(found), "paris": "Paris" in known, "names": known}


def country_capitals(path: Path) -> Iterator[tuple[str, str]]:
    """The distinct countries of the analogies, in their order, with their capitals."""
    seen, inside = set(), False
    for _, line in open_text(path):
        if line.startswith(":"):
            inside = line.strip() in (": capital-common-countries", ": capital-world")
        elif inside:
            for capital, country in ([*line.split()][:2], [*line.split()][2:]):
                if country not in seen:
                    seen.add(country)
                    yield country, capital


def sentence_similarity(model: keel.Model, tasks: Path) -> Iterator[dict[str, Any]]:
    """dev with its labels, which an unsupervised model has not used; test with those of its Chinese translation."""
    parts = {"STS-B dev, cosine": read_dev(tasks), "STS-B test, labels rounded, cosine": read_test(tasks)}
    for part, pairs in parts.items():
        first, second, gold = zip(*pairs, strict=True)
        one, two = (model.encode([*texts]) for texts in (first, second))
        cosines = (one * two).sum(1) / ((one**2).sum(1) * (two**2).sum(1)) ** 0.5
        correlation = np.corrcoef(ranks(cosines), ranks(np.array(gold, np.float64)))[0, 1]
        yield {"score": part, "spearman": 100 * float(correlation), "pairs": len(gold)}


def read_columns(path: Path) -> list[dict[str, str]]:
    head, *rows = [line.rstrip("\n").split("\t") for _, line in open_text(path)]
    return [dict(zip(head, row, strict=True)) for row in rows]


def read_dev(tasks: Path) -> list[tuple[str, str, str]]:
    rows = read_columns(tasks / "glue" / "STS-B" / "dev.tsv.xz")
    return [(row["sentence1"], row["sentence2"], row["score"]) for row in rows]


def read_test(tasks: Path) -> list[tuple[str, str, str]]:
    """GLUE's test set has no labels; its translation has them as whole numbers. Pairs whose number is unique."""
    lines = (line.rstrip("\n").split("||") for _, line in open_text(tasks / "zh/sts_b_zh/cnsd-sts-test.txt.xz"))
    labels = unique((line[0], line[-1]) for line in lines)
    rows = read_columns(tasks / "glue" / "STS-B" / "test.tsv.xz")
    pairs = unique((f"{row['year']}-{row['old_index']}", row) for row in rows)
    return [(row["sentence1"], row["sentence2"], labels[number]) for number, row in pairs.items() if number in labels]


def unique(items: Iterable[tuple[str, T]]) -> dict[str, T]:
    listed = [*items]
    counts = Counter(key for key, _ in listed)
    return {key: value for key, value in listed if counts[key] == 1}


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values have their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[inverse]


def bits_per_byte(model: keel.Model, tasks: Path, stride: int) -> dict[str, Any]:
    raw = "\n".join(line for _, line in open_text(tasks / "wikitext2" / "test.txt.xz"))
    found = keel.perplexity(model, [plain(raw)], stride=stride)
    return {"score": "WikiText-2 test", **{name: each.value for name, each in found.values.items()}}


def last_words(model: keel.Model, tasks: Path) -> dict[str, Any]:
    found = keel.evaluate(model, tasks / "lambada" / "lambada_test.jsonl.xz", by="last-word")
    return {"score": "LAMBADA", **{name: each.value for name, each in found.values.items()}}


def distinct(texts: Sequence[str], order: int = 4) -> float:
    """distinct-n (Li et al., 2016): different n-grams of words over all n-grams, of the first words of each text."""
    grams = [
        tuple(words[start : start + order])
        for words in (text.split()[:WORDS] for text in texts)
        for start in range(len(words) - order + 1)
    ]
    return len({*grams}) / len(grams)


def diversity(model: keel.Model, real: Path) -> dict[str, Any]:
    """distinct-4 of sampled and of real paragraphs, each of as many words."""
    paragraphs = [line for _, line in islice(open_text(real), 200_000) if len(line.split()) >= WORDS]
    chosen = random.Random(0).sample(paragraphs, min(PARAGRAPHS, len(paragraphs)))
    prompts = [" ".join(text.split()[:3]) for text in chosen]
    sampled = keel.generate(prompts, model=model, tokens=3 * WORDS, seed=0)
    whole = [f"{prompt} {text}" for prompt, text in zip(prompts, sampled, strict=True)]
    own, theirs = distinct(whole), distinct(chosen)
    return {"score": "distinct-4", "sampled": own, "real": theirs, "ratio": own / theirs, "paragraphs": len(chosen)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("encoder", "gpt"))
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--real", type=Path, help="a text with real paragraphs")
    parser.add_argument("--stride", type=int, default=256)
    parser.add_argument("--out", type=Path, help="a file of the results, written when all are there")
    options = parser.parse_args()
    lines = ""
    for path in options.models:
        model = keel.Model.load(path)
        found: list[dict[str, Any]] = []
        if options.kind == "encoder":
            found += [capitals(model, options.tasks), *sentence_similarity(model, options.tasks)]
        else:
            found += [diversity(model, options.real)] if options.real else []
            found += [last_words(model, options.tasks), bits_per_byte(model, options.tasks, options.stride)]
        lines += "".join(json.dumps({"model": path.name, **each}) + "\n" for each in found)
    print(lines, end="")
    if options.out:
        options.out.write_text(lines)


if __name__ == "__main__":
    main()
