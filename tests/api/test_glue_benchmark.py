"""GLUE on small files in the form in which it is published."""

import json
from pathlib import Path
from typing import Any

import pytest

import keel
from keel.api.glue_benchmark import GlueData, _Budget
from keel.cli import main
from keel.data.glue_files import GLUE_TASKS, GlueTask
from keel.errors import KeelError, UsageError
from keel.events import Event, ignore
from keel.tasks import TASKS
from keel.training.checkpoint import run_lock

SYSTEM = keel.Transformer(width=16, head_dim=8, layers=1)
PAIRS = ("the boat is here\tit is here", "a cake was baked\tno boat is here", "a dog ran\tthe dog ran")


def write_glue(folder: Path, count: int = 24) -> Path:
    """All nine tasks with their published columns; QNLI without a training file."""
    mnli = "index\tpromptID\tpairID\tgenre\ts1_bp\ts2_bp\ts1_p\ts2_p\tsentence1\tsentence2"
    nli, numbers = ("entailment", "not_entailment"), [f"{n % 6}.{n % 10}00" for n in range(count)]
    header = {
        "CoLA": ("", "index\tsentence"),
        "SST-2": ("sentence\tlabel", "index\tsentence"),
        "MRPC": ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "index\t#1 ID\t#2 ID\t#1 String\t#2 String"),
        "STS-B": (
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
        ),
        "QQP": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "id\tquestion1\tquestion2"),
        "MNLI": (f"{mnli}\tlabel1\tgold_label", mnli),
        "QNLI": ("index\tquestion\tsentence\tlabel", "index\tquestion\tsentence"),
        "RTE": ("index\tsentence1\tsentence2\tlabel", "index\tsentence1\tsentence2"),
        "WNLI": ("index\tsentence1\tsentence2\tlabel", "index\tsentence1\tsentence2"),
    }

    def row(name: str, n: int, labelled: bool) -> str:
        text, pair, binary = PAIRS[n % 3].split("\t")[0] + f" {n}", PAIRS[n % 3] + f" {n}", n % 2
        label = (nli, ("contradiction", *nli))[name == "MNLI"][n % (2 + (name == "MNLI"))]
        filler = "\t".join(["x"] * 7)
        published = {
            "CoLA": f"gj04\t{binary}\t\t{text}",
            "SST-2": f"{text}\t{binary}",
            "MRPC": f"{binary}\t{n}\t{n}\t{pair}",
            "STS-B": f"{n}\tmain\tf\t2012\t{n}\tnone\tnone\t{pair}\t{numbers[n]}",
            "QQP": f"{n}\t{n}\t{n}\t{pair}\t{binary}",
            "MNLI": f"{n}\t{filler}\t{pair}\t{label}\t{label}",
        }
        if labelled:
            return published.get(name, f"{n}\t{pair}\t{binary if name == 'WNLI' else label}")
        plain = {"CoLA": text, "SST-2": text, "MRPC": f"1\t2\t{pair}", "MNLI": f"{filler}\t{pair}"}
        sts = f"main\tf\t2012\t{n}\tnone\tnone\t{pair}"
        return f"{n}\t{plain.get(name, sts if name == 'STS-B' else pair)}"

    for name, (labelled, unlabelled) in header.items():
        (folder / name).mkdir(parents=True)
        dev = ("dev_matched", "dev_mismatched") if name == "MNLI" else ("dev",)
        test = ("test_matched", "test_mismatched") if name == "MNLI" else ("test",)
        for stem in ("train", *dev, *test):
            if (name, stem) == ("QNLI", "train"):
                continue
            head = unlabelled if stem in test else labelled
            rows = [row(name, n, stem not in test) for n in range(count)]
            (folder / name / f"{stem}.tsv").write_text("\n".join([*filter(None, [head]), *rows]) + "\n")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_glue(tmp_path_factory.mktemp("glue"))


def test_every_task_is_scored_and_predicted_and_the_same_call_resumes(data: Path, tmp_path: Path) -> None:
    call: dict[str, Any] = {"out": tmp_path / "out", "lr": (1e-4, 1e-2), "epochs": 1.0, "batch": 8, "seeds": 2}
    scores = keel.glue(SYSTEM, data, progress=False, **call)
    names = [task.name for task in GLUE_TASKS if task.name != "QNLI"]
    assert [each.name for each in scores.results] == names
    assert list(scores.left_out) == ["QNLI"]
    found = {each.name: each for each in scores.results}
    assert {name: list(each.scores) for name, each in found.items()} == {
        "CoLA": ["matthews"],
        "SST-2": ["accuracy"],
        "MRPC": ["binary_f1", "accuracy"],
        "STS-B": ["spearman", "pearson"],
        "QQP": ["binary_f1", "accuracy"],
        "MNLI": ["accuracy (matched)", "accuracy (mismatched)"],
        "RTE": ["accuracy"],
        "WNLI": ["accuracy"],
    }
    assert scores.mean == pytest.approx(sum(each.value for each in scores.results) / len(names))
    for name in ("CoLA", "STS-B", "MNLI"):  # each run is an ordinary model folder with the scores of `evaluate`
        for seed, value in enumerate(next(iter(found[name].scores.values()))):
            model = keel.Model.load(tmp_path / "out" / name / f"seed-{seed}")
            assert model.card.recipe["train"]["lr"] == found[name].lr
            dev = data / name / ("dev_matched.tsv" if name == "MNLI" else "dev.tsv")
            labels = "regression" if name == "STS-B" else "auto"
            values = keel.evaluate(model, dev, labels=labels).values
            metric = next(task.metrics[0] for task in GLUE_TASKS if task.name == name)
            assert values[metric].value == pytest.approx(value)
    submitted = {path.stem for path in (tmp_path / "out" / "submission").iterdir()}
    assert submitted == {*names, "MNLI-m", "MNLI-mm"} - {"MNLI"}
    for name, allowed in {"RTE": {"entailment", "not_entailment"}, "MRPC": {"0", "1"}}.items():
        head, *rows = (tmp_path / "out" / "submission" / f"{name}.tsv").read_text().splitlines()
        assert head == "index\tprediction"
        assert [row.split("\t")[0] for row in rows] == [str(n) for n in range(24)]
        assert {row.split("\t")[1] for row in rows} <= allowed
    similar = (tmp_path / "out" / "submission" / "STS-B.tsv").read_text().splitlines()[1:]
    assert all(0 <= float(row.split("\t")[1]) <= 5 for row in similar)

    events: list[Event] = []
    again = keel.glue(SYSTEM, data, on_event=events.append, **call)
    assert again.to_dict() == scores.to_dict()
    assert not any(event["event"] == "step" for event in events)
    with pytest.raises(UsageError, match="another epochs"):
        keel.glue(SYSTEM, data, progress=False, **{**call, "epochs": 2.0})


def test_an_interrupted_call_resumes_at_its_run(data: Path, tmp_path: Path) -> None:
    call: dict[str, Any] = {"lr": (1e-3,), "epochs": 1.0, "batch": 8, "seeds": 2, "tasks": ("RTE",)}
    whole = keel.glue(SYSTEM, data, out=tmp_path / "whole", progress=False, **call)

    def stop(event: Event) -> None:
        if event["event"] == "scores" and event["seed"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keel.glue(SYSTEM, data, out=tmp_path / "out", on_event=stop, **call)
    trained: list[Event] = []
    resumed = keel.glue(SYSTEM, data, out=tmp_path / "out", on_event=trained.append, **call)
    assert resumed.results[0].scores == whole.results[0].scores
    assert {event["seed"] for event in trained if event["event"] == "scores"} == {1}


def sized(name: str, size: int) -> GlueData:
    examples = TASKS["classify"].read_examples([("x" * size, "a"), ("", "b")])
    return GlueData(definition=GlueTask(name=name), train=examples, dev={})


def test_a_time_limit_cuts_seeds_then_learning_rates_then_tasks() -> None:
    pending = [sized("a", 100), sized("b", 900)]
    unlimited = _Budget(0.0, ignore)
    unlimited.add(sized("first", 100), (3, 3), 1000.0)
    assert unlimited.plan(pending, 3, 3) == (3, 3)

    def planned(limit: float) -> tuple[int, int] | None:
        budget = _Budget(limit, ignore)
        assert budget.plan(pending, 3, 3) == (3, 3)  # nothing is known yet
        budget.add(sized("first", 100), (1, 1), 10.0)  # 0.1 s per character
        return budget.plan(pending, 3, 3)

    assert planned(10 + 0.1 * 1000 * (2.7 + 3)) == (3, 3)
    assert planned(10 + 0.1 * 1000 * (2.7 + 2)) == (3, 2)
    assert planned(10 + 0.1 * 1000 * (2.7 + 1)) == (3, 1)
    assert planned(10 + 0.1 * 1000 * (1.8 + 1)) == (2, 1)
    assert planned(10 + 0.1 * 1000) == (1, 1)
    assert planned(10 + 0.1 * 100) == (1, 1)  # not all tasks fit, but the next one does
    assert planned(10 + 0.1 * 99) is None


def test_the_command_line(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = tmp_path / "base"
    rows = [("a boat", "x"), ("the cake", "y")] * 4
    keel.finetune(SYSTEM, rows, dev=None, steps=1, out=base, progress=False)
    words = ["glue", str(base), "--data", str(data), "--out", str(tmp_path / "out"), "--tasks", "RTE,QNLI"]
    words += ["--lr", "1e-3", "--epochs", "1", "--seeds", "1"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "RTE" in printed
    assert "accuracy" in printed
    assert "QNLI is left out: no train.tsv" in printed
    assert main([*words, "--json", "--overwrite"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"]["RTE"]["lr"] == 1e-3
    sweep = [*words[:-6], "--tasks", "RTE", "--lr", "1e-3,1e-2", "--epochs", "1", "--seeds", "1", "--overwrite"]
    assert main(sweep) == 0
    capsys.readouterr()
    assert main(["runs", str(tmp_path / "out"), "--json"]) == 0  # though checkpoints of finished runs are removed
    runs = {run["name"]: run["settings"]["lr"] for run in json.loads(capsys.readouterr().out)["runs"]}
    assert runs.items() >= {"sweep, seed 0, lr 0.001": 1e-3, "sweep, seed 0, lr 0.01": 1e-2}.items()
    assert len(runs) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ("RTR",)}, "RTE"),
        ({"tasks": ("QNLI",)}, "no train.tsv"),
        ({"lr": ()}, "lr"),
        ({"data": "x"}, "'?x'?"),
    ],
)
def test_what_cannot_run_is_refused_before_training(
    settings: dict[str, Any], message: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        keel.glue(SYSTEM, **{"data": data, "out": tmp_path / "out", "progress": False, **settings})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        keel.glue(SYSTEM, data, out=tmp_path / "mine", progress=False, overwrite=True)


def test_two_processes_do_not_write_into_one_folder(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call: dict[str, Any] = {"tasks": ("CoLA",), "lr": (1e-3,), "epochs": 1.0, "seeds": 1, "out": out, "progress": False}
    first = keel.glue(SYSTEM, data, **call)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with run_lock(out):  # the other process
        for overwrite in (False, True):
            with pytest.raises(KeelError, match="another run is writing into"):
                keel.glue(SYSTEM, data, overwrite=overwrite, **call)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert keel.glue(SYSTEM, data, **call).to_dict() == first.to_dict()
