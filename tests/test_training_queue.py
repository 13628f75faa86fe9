"""The queue of trainings on one GPU (benchmarks/h200/lease.py): packing, limits of size, and what survives a kill."""

import importlib
import json
import lzma
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

FOLDER = Path(__file__).parent.parent / "benchmarks" / "h200"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> "type[Modules]":
    monkeypatch.syspath_prepend(str(FOLDER))
    return Modules


class Modules:
    """The scripts, which are no package."""

    @staticmethod
    def load(name: str) -> ModuleType:
        return importlib.import_module(name)


def test_a_folder_passes_in_parts_of_limited_size(
    module: type[Modules], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing = module.load("packing")
    monkeypatch.setattr(packing, "PART", 3000)
    (tmp_path / "model").mkdir()
    weights = {"a": torch.randn(40, 50), "ids": torch.arange(5)}
    save_file(weights, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_text("{}")
    parts = packing.pack(tmp_path / "model", tmp_path / "x")
    assert len(parts) > 2
    assert max(part.stat().st_size for part in parts) <= 3000
    packing.unpack(tmp_path / "x", tmp_path / "copy")
    read = load_file(tmp_path / "copy" / "model.safetensors")
    assert torch.equal(read["a"], weights["a"].half())
    assert torch.equal(read["ids"], weights["ids"])
    packing.restore(tmp_path / "copy" / "model.safetensors")
    assert load_file(tmp_path / "copy" / "model.safetensors")["a"].dtype == torch.float32
    parts[0].write_bytes(parts[0].read_bytes()[::-1])
    with pytest.raises(SystemExit, match="damaged"):
        packing.unpack(tmp_path / "x", tmp_path / "copy")


def test_uploads_are_full_and_groups_are_unpacked_when_complete(module: type[Modules], tmp_path: Path) -> None:
    inputs = module.load("lease_inputs")
    tree, files = tmp_path / "tree", {}
    for group, sizes in {"tasks": (100, 20_000), "text": (70_000,)}.items():
        for number, size in enumerate(sizes):
            path = tree / group / f"{number}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(np.random.default_rng(size).bytes(size))
            files.setdefault(group, []).append(path)
    inputs.fill_uploads(tmp_path / "in", tree, files, 40_000)
    uploads = sorted(path for path in (tmp_path / "in").iterdir() if path.is_dir())
    assert len(uploads) == 3
    assert all(sum(path.stat().st_size for path in upload.glob("*.??")) <= 40_000 for upload in uploads)
    work = tmp_path / "work"
    for upload, complete in zip(uploads, (["tasks"], ["tasks"], ["tasks", "text"]), strict=True):
        inputs.receive(upload, work)
        inputs.receive(upload, work)  # the same one again changes nothing
        assert sorted(path.stem for path in (work / "inputs").glob("*.complete")) == complete
    assert (work / "inputs" / "text" / "0.bin").read_bytes() == files["text"][0].read_bytes()


def test_results_are_copied_within_the_limits_of_each_call(module: type[Modules], tmp_path: Path) -> None:
    lease = module.load("lease")
    results = tmp_path / "results"
    results.mkdir()
    for name in ("2-large", "1-small"):
        for number in range(3):
            (results / f"{name}.{number:02}").write_bytes(b"x" * 1_000_000)
        (results / f"{name}.packed").write_text("hash 3\n")
    found: list[set[str]] = []
    for call in range(4):
        out = tmp_path / f"out{call}"
        lease.Delivery(tmp_path, out, files=4, size=4.5e6, again=False).copy()
        found.append({path.name for path in out.iterdir()})
        assert len(found[-1]) <= 4
        assert sum(path.stat().st_size for path in out.iterdir()) <= 4.5e6
    assert all(lease.REPORT in names for names in found)
    assert {"1-small.00", "1-small.01"} <= found[0]
    assert set().union(*found) >= {path.name for path in results.iterdir()}
    assert found[3] == {lease.REPORT}


def test_a_line_that_a_kill_cut_off_is_dropped(module: type[Modules], tmp_path: Path) -> None:
    encoder, path = module.load("encoder"), tmp_path / "x.jsonl"
    path.write_text('{"name": "RTE", "seed": 0}\n{"name": "MR')
    assert encoder.finished_lines(path) == [{"name": "RTE", "seed": 0}]
    assert path.read_text() == '{"name": "RTE", "seed": 0}\n'


def test_ranks_and_distinct_ngrams(module: type[Modules]) -> None:
    scores = module.load("model_scores")
    assert scores.ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]
    assert scores.distinct(["a b c d", "a b c d", "b c d e"]) == 2 / 3


def test_the_stages_of_both_queues_need_what_there_is(module: type[Modules]) -> None:
    """Names are unique, since both queues may run in one folder."""
    lease = module.load("lease")
    names = [stage.name for stage in lease.STAGES]
    assert len(names) == len(set(names))
    for queue, groups in {
        "english": {*module.load("lease_inputs").FILES},
        "chinese": {*module.load("lease_chinese_inputs").FILES, "chinese-text", "languages-text"},
    }.items():
        earlier: set[str] = set()
        for stage in lease.QUEUES[queue].STAGES:
            assert {*stage.inputs} <= groups
            assert {*stage.after} <= earlier
            earlier.add(stage.name)


def test_learning_rates_are_chosen_before_the_seeds_are_tested(module: type[Modules]) -> None:
    ernie = module.load("ernie")
    options = Namespace(names=["OCNLI"], rates=[1e-4, 3e-4], seeds=[0, 1])
    first = [*ernie.possible_jobs(options, {})]
    assert [(job.lr, job.held_out) for job in first] == [(1e-4, True), (3e-4, True)]
    assert [*ernie.possible_jobs(options, {first[0].key: 0.7})] == first
    later = [*ernie.possible_jobs(options, {first[0].key: 0.6, first[1].key: 0.7})][2:]
    assert [(job.lr, job.seed, job.held_out) for job in later] == [(3e-4, 0, False), (3e-4, 1, False)]


def test_the_rows_of_the_comparison_differ_in_masking_alone(module: type[Modules]) -> None:
    ernie = module.load("ernie")
    options = Namespace(entities="names.txt", tokenizer="tokenizer", set=[("steps", 7)])
    found = {row: ernie.settings_of(row, options) for row in ernie.ROWS}
    assert [ernie.ROWS[row].system for row in found] == ["bert", "bert", "ernie", "ernie"]
    masking = {row: {name: settings.pop(name, None) for name in ("whole_word_masking", "phrases", "entities")}
               for row, settings in found.items()}  # fmt: skip
    assert [each["whole_word_masking"] for each in masking.values()] == [False, True, True, True]
    assert [bool(each["phrases"]) for each in masking.values()] == [False, False, True, True]
    assert [bool(each["entities"]) for each in masking.values()] == [False, False, False, True]
    assert found["characters"]["steps"] == 7
    assert all(settings == found["characters"] for settings in found.values())


def test_documents_that_share_a_run_with_a_test_set_are_dropped(module: type[Modules], tmp_path: Path) -> None:
    inputs = module.load("lease_chinese_inputs")
    passage = "".join(map(chr, range(0x4E00, 0x4E40)))
    kept, shared = f"{passage[:29]}。{passage[29:58]}\n", f"人\n{passage[10:20]} {passage[20:41]}\n"
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "zh.txt").write_text(f"{kept}\n{shared}\n人 a@b.cn\n", encoding="utf-8")
    options = Namespace(data=tmp_path, lines=0, preset=0)
    out = inputs.clean(options, "zh", tmp_path / "out" / "zh.txt.xz", frozenset(inputs.runs_of(passage)))
    assert lzma.decompress(out.read_bytes()).decode() == f"{kept}\n人 \n\n"


@pytest.mark.multi
def test_a_stage_that_was_killed_starts_again(
    module: type[Modules], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures are counted and end a stage; a kill does not, and its lock ends with the last process that has it."""
    lease, stages = module.load("lease"), module.load("lease_stages")
    stage = stages.Stage("sleep", lambda paths, sizes: [[sys.executable, "-c", "import time; time.sleep(60)"]])
    (tmp_path / "plan.json").write_text(json.dumps({"stages": [], "steps": {}, "tiny": True}))
    queue = lease.Queue(tmp_path)
    monkeypatch.setattr(lease, "__file__", str(tmp_path / "stage.py"))
    (tmp_path / "stage.py").write_text("import time; time.sleep(60)")
    assert queue.state(stage) == "waiting"
    queue.start(stage)
    assert queue.state(stage) == "running"
    queue.children[0].kill()
    queue.children[0].wait()
    deadline = time.monotonic() + 10
    while queue.state(stage) == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert queue.state(stage) == "waiting"
    assert lease.count(tmp_path, "starts", "sleep") == 1
    for _ in range(lease.FAILURES):
        lease.add_one(tmp_path, "failures", "sleep")
    assert queue.state(stage) == "failed"
