"""fastText's classifier, ours and the C++ program's, on the same words: seconds, accuracy, predictions of its files.

    python benchmarks/fasttext_supervised.py --fasttext PATH/TO/fasttext --train train.tsv --test dev.tsv
    python benchmarks/fasttext_supervised.py --fasttext PATH/TO/fasttext --model lid.176.ftz --texts texts.txt

Both sides learn in one thread, in turns; each side's figures are medians. Words are cut once, by Keel's rules, into a
file in fastText's own format, which both sides read. "An epoch" is what one more costs: the difference of two lengths.
"""

import argparse
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from keel.api.evaluation import evaluate
from keel.api.finetuning import finetune
from keel.data.examples import Example, Examples, read_examples
from keel.data.tokenizer import Tokenizer
from keel.model import Model
from keel.systems.fasttext import FastText
from keel.systems.fasttext_classifier import label_tree
from keel.tasks.classify import TextClassification

Loss = Literal["softmax", "hierarchical", "negative", "one-vs-all"]
LOSSES: dict[Loss, str] = {"softmax": "softmax", "hierarchical": "hs", "negative": "ns", "one-vs-all": "ova"}
"""Our names of the losses, and fastText's."""
LONGER = 3
"""How many times as long the second run is, whose difference from the first shows what an epoch costs."""


def split(source: Path, target: Path) -> None:
    """Labelled texts, cut into words, as fastText reads them."""
    rules = Tokenizer.from_words(["a"])
    examples = read_examples(source, pair=False)
    tokens = rules.encode_with_offsets([example.text for example in examples])
    with open(target, "w", encoding="utf-8") as file:
        for example, found in zip(examples, tokens, strict=True):
            words = " ".join(example.text[start:end] for start, end in found.offsets)
            labels = " ".join(f"__label__{name.replace(' ', '_')}" for name in example.names)
            file.write(f"{labels} {words}\n")


def timed(work: Callable[[], object], who: int) -> tuple[float, float]:
    """Wall and CPU seconds."""
    before, began = resource.getrusage(who), time.monotonic()
    work()
    after = resource.getrusage(who)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu


def race(
    program: str, train: Path, test: Path, *, epochs: int, lr: float, ngrams: int, loss: Loss, rounds: int
) -> None:
    folder = tempfile.mkdtemp()
    flags = f"-lr {lr} -wordNgrams {ngrams} -bucket 2000000 -loss {LOSSES[loss]} -thread 1 -verbose 0".split()

    def cpp(length: int) -> None:
        command = [program, "supervised", "-input", str(train), "-output", f"{folder}/m", "-epoch", str(length)]
        subprocess.run([*command, *flags], check=True)

    def keel(length: int) -> None:
        finetune(
            "fasttext", train, out=f"{folder}/keel", dev=None, overwrite=True, threads=1, epochs=length, lr=lr,
            word_ngrams=ngrams, label_loss=loss,
        )  # fmt: skip

    keel(1)  # compiles
    times: dict[str, list[tuple[float, float]]] = {"cpp": [], "keel": [], "cpp epoch": [], "keel epoch": []}
    for _ in range(rounds):
        for name, work, who in (("cpp", cpp, resource.RUSAGE_CHILDREN), ("keel", keel, resource.RUSAGE_SELF)):
            long = timed(lambda work=work: work(LONGER * epochs), who)
            short = timed(lambda work=work: work(epochs), who)
            times[name].append(short)
            more = (LONGER - 1) * epochs
            times[f"{name} epoch"].append(((long[0] - short[0]) / more, (long[1] - short[1]) / more))
    medians = {
        name: [statistics.median(column) for column in zip(*found, strict=True)] for name, found in times.items()
    }
    for name, (wall, cpu) in medians.items():
        print(f"{name:12} wall {wall:8.3f} s   CPU {cpu:8.3f} s")
    for what in ("", " epoch"):
        wall, cpu = (medians[f"cpp{what}"][n] / medians[f"keel{what}"][n] for n in (0, 1))
        print(f"ratio of {'whole runs' if not what else 'epochs'}: wall {wall:.2f}, CPU {cpu:.2f}")
    out = subprocess.run([program, "test", f"{folder}/m.bin", str(test)], check=True, capture_output=True, text=True)
    print("fastText:", " ".join(out.stdout.split()))
    print("Keel:", evaluate(f"{folder}/keel", test).values["accuracy"])


def compare(program: str, path: Path, texts: Path) -> None:
    """The five most probable labels of every line by both, and how far their probabilities differ."""
    lines = [line for line in texts.read_text(encoding="utf-8").split("\n") if "</s>" not in line.split()][:-1]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))
        file.flush()
        command = [program, "predict-prob", str(path), file.name, "5"]
        theirs = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    model = Model.load(path)
    task, system = model.task, model.system
    assert isinstance(task, TextClassification)
    assert isinstance(system, FastText)
    data = task.encode_examples(
        Examples.of([Example(line, None, None, "") for line in lines], None, "texts"), labelled=False
    )
    probabilities = task.predict(data).estimates
    scores = torch.empty(len(lines), len(task.labels.names))
    for index, found in task._infer(data, 64, lambda features, _: task.classifier(features)):
        scores[index] = found
    # fastText adds 1e-5 to every chance before it takes the logarithm.
    raised = probabilities + 1e-5
    if system.label_loss == "hierarchical":
        tree = label_tree(task.labels.counts)
        signs = torch.from_numpy(tree.signs)
        steps = (scores[:, torch.from_numpy(tree.nodes).long()] * signs).sigmoid()
        raised = torch.where(signs != 0, (steps + 1e-5).log(), 0.0).sum(-1).exp().numpy()
    first = same = 0
    worst = [0.0, 0.0]
    place = {name: number for number, name in enumerate(task.labels.names)}
    for number, line in enumerate(theirs[: len(lines)]):
        parts = line.split()
        top_labels = [
            (place[name.removeprefix("__label__")], float(p)) for name, p in zip(parts[::2], parts[1::2], strict=True)
        ]
        first += top_labels[0][0] == int(probabilities[number].argmax())
        ours = np.argsort(-raised[number], kind="stable")[:5].tolist()
        same += [label for label, p in top_labels if p > 1e-4] == [each for each in ours if raised[number, each] > 1e-4]
        for kind, values in enumerate((raised[number], probabilities[number])):
            worst[kind] = max(worst[kind], *(abs(float(values[label]) - p) for label, p in top_labels))
    print(
        f"{len(lines)} texts: the most probable label is equal in {first}, all of the first five above 0.0001 in {same}"
    )
    print(f"probabilities differ by {worst[0]:.1e} at most, by {worst[1]:.1e} without the 1e-5 that fastText adds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fasttext", required=True, help="the program, built by `make opt`")
    parser.add_argument("--train", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--word-ngrams", type=int, default=1)
    parser.add_argument("--loss", choices=LOSSES, default="softmax")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, help="a .bin or .ftz whose predictions are compared")
    parser.add_argument("--texts", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.model:
        compare(options.fasttext, options.model, options.texts)
        return
    with tempfile.TemporaryDirectory() as folder:
        train, test = Path(folder) / "train.txt", Path(folder) / "test.txt"
        split(options.train, train)
        split(options.test, test)
        race(options.fasttext, train, test, epochs=options.epochs, lr=options.lr, ngrams=options.word_ngrams,
             loss=options.loss, rounds=options.rounds)  # fmt: skip


if __name__ == "__main__":
    main()
