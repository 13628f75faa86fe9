"""The command line as its users see it: results on stdout, one sentence on stderr, the right exit code."""

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from keel.api.finetuning import finetune
from keel.cli import GROUPS, declared_commands, load_command, main
from keel.cli.flags import Flags
from keel.systems import SYSTEMS
from keel.systems.system import System
from keel.toml_files import read_toml
from keel.training.plan import Train

RECIPES = sorted((Path(__file__).parents[2] / "recipes").rglob("*.toml"))
Run = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]


def test_the_overview_lists_every_verb(run: Run) -> None:
    for words in ([], ["--help"], ["help"]):
        code, out, _ = run(*words)
        assert code == 0
        assert all(f"  {verb} " in out for verb in declared_commands())
        listed = out.split("Results go to stdout")[0].splitlines()[1:]
        assert [line for line in listed if line and not line.startswith("  ") and line not in GROUPS] == []


@pytest.mark.parametrize("verb", declared_commands())
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([verb, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: keel {verb} ")


def test_help_shows_fields_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pretrain", "--help"])
    out = capsys.readouterr().out
    assert "--lr X" in out
    assert "--system.layers N                 Number of blocks. [12]" in out
    assert "--train.lr" not in out  # it works, but once is enough in the help


@pytest.mark.parametrize(("model_type", "flag"), [("gpt2", "--system.sink"), ("bert", "--system.mask_rate")])
def test_a_published_folder_gets_the_flags_of_its_system(
    model_type: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(SystemExit, match="0"):
        main(["pretrain", str(tmp_path), "--help"])
    assert flag in capsys.readouterr().out


def test_startup_loads_nothing_heavy() -> None:
    """`keel --help` under 0.3 s and `import keel` under 0.5 s, with as much again for a busy machine."""
    heavy = "{'torch', 'numpy', 'tokenizers', 'rich', 'numba'} & sys.modules.keys()"
    for code, limit in (("import keel", 0.5), ("from keel.cli import main; main(['--help'])", 0.3)):
        seconds: list[float] = []
        for _ in range(5):
            began = time.perf_counter()
            watched = f"import sys; {code}; sys.exit(len({heavy}))"
            subprocess.run([sys.executable, "-c", watched], check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - began)
        assert min(seconds) < 2 * limit


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is needed")
def test_no_room_for_the_output_is_no_bug() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "keel", "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no space left" in done.stderr


def test_python_m_keel_and_a_closed_pipe(folder: Path) -> None:
    embed = f"embed {folder / 'train.tsv'} --model {folder / 'base'} --pool none --quiet"
    command = f"{sys.executable} -m keel {embed} | head -c 100"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stdout.startswith('{"text": "the sailor')
    assert done.stderr == ""


def test_an_interrupted_run_exits_130_and_resumes(
    tmp_path: Path, english_corpus: Path, monkeypatch: pytest.MonkeyPatch, tiny: list[str]
) -> None:
    from keel.report.console import Console

    def stop(console: Console, event: dict) -> None:
        if event["event"] == "step" and event["step"] == 2:
            signal.raise_signal(signal.SIGINT)

    command = [
        "pretrain",
        "bert",
        str(english_corpus),
        *tiny,
        "--steps",
        "4",
        "--train.log_every",
        "1",
        "--out",
        str(tmp_path / "m"),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(Console, "__call__", stop)
        assert main(command) == 130
    assert not (tmp_path / "m" / "model.safetensors").exists()
    assert main(command) == 0
    log = [json.loads(line) for line in (tmp_path / "m" / "run" / "log.jsonl").read_text().splitlines()]
    assert [event["step"] for event in log if event["event"] == "step"] == [1, 2, 3, 4]


PROGRAM = """
import atexit, os, signal, sys
import keel.cli

class Freed:
    def __del__(self):
        os.write(2, b"finalized")

def interrupted(words):
    print("partial result")
    exec("os.kill(os.getpid(), signal.SIGTERM)", globals())  # as a dataclass that is being defined

freed = Freed()
atexit.register(print, "cleaned up")
keel.cli._run = interrupted
sys.exit(keel.cli.main())
"""


def test_an_interrupted_program_exits_130_without_finalization(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "-m", "program"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr == "keel: interrupted\n"
    assert done.stdout == "partial result\ncleaned up\n"


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN])
def test_sigterm_is_answered_like_ctrl_c_unless_it_is_muted(
    run: Run, monkeypatch: pytest.MonkeyPatch, handler: Any
) -> None:
    def terminated(words: list[str]) -> int:
        signal.raise_signal(signal.SIGTERM)
        return 0

    monkeypatch.setattr("keel.cli._run", terminated)
    before = signal.signal(signal.SIGTERM, handler)
    try:
        result = run("predict")
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert result == ((130, "", "keel: interrupted\n") if handler is signal.SIG_DFL else (0, "", ""))


SYSTEMS_THAT_LEARN: dict[str, tuple[list[str], str]] = {
    "elmo": (["--size", "tiny", "--steps", "2", "--batch", "4"], "senses WORD --in FILE"),
    "onehot": ([], 'nearest "..." --in FILE'),
    "wordclass": (["--system.classes", "8"], "nearest WORD"),
}


@pytest.mark.parametrize("name", SYSTEMS_THAT_LEARN)
def test_the_next_step_of_pretrain_runs(run: Run, tmp_path: Path, english_corpus: Path, name: str) -> None:
    flags, next_step = SYSTEMS_THAT_LEARN[name]
    code, out, err = run("pretrain", name, english_corpus, *flags, "--out", tmp_path / "m")
    assert code == 0, err
    assert f"next: keel {next_step} --model {tmp_path / 'm'}\n" in out
    (tmp_path / "uses.txt").write_text("The sailor sees the boat.\nA sailor sleeps.\n")
    filled = next_step.replace("WORD", "sailor").replace('"..."', "sailor").replace("FILE", str(tmp_path / "uses.txt"))
    code, out, err = run(*filled.split(), "--model", tmp_path / "m")
    assert code == 0, err


def test_pretrain_prints_the_folder_and_the_validation_loss(
    run: Run, tmp_path: Path, english_corpus: Path, tiny: list[str], refused: Refused
) -> None:
    code, out, err = run("pretrain", "bert", english_corpus, *tiny, "--steps", "2", "--out", tmp_path / "m")
    assert code == 0
    assert f"{tmp_path / 'm'} is ready: 2 steps" in out
    assert "validation loss: " in out
    assert "nsp" in out
    assert f"--model {tmp_path / 'm'}" in out
    assert "step 2/2  loss " in err
    again = run("pretrain", "bert", english_corpus, *tiny, "--steps", "2", "--out", tmp_path / "m")
    assert again[0] == 0  # it is done already
    changed = run("pretrain", "bert", english_corpus, *tiny, "--steps", "2", "--lr", "3e-3", "--out", tmp_path / "m")
    refused(changed, 2, "lr")


@pytest.mark.parametrize("verb", declared_commands())
def test_with_json_stdout_is_json_and_messages_are_on_stderr(
    verb: str,
    run: Run,
    folder: Path,
    ngram: Path,
    desk: Path,
    tmp_path: Path,
    english_corpus: Path,
    tiny: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def demo(*, out: str, on_event: Callable[[dict], None]) -> Path:
        on_event({"event": "note", "text": "the tour itself takes minutes"})
        return Path(out) / "index.html"

    monkeypatch.setattr("keel.demo.run", demo)
    monkeypatch.setattr("keel.studio.server.serve", lambda *given: None)
    (tmp_path / "vectors.txt").write_text("she 1 0\nhe 0 1\nnurse 1 0.5\n")
    words = {
        "check": [folder / "train.tsv", folder / "test.tsv"],
        "pretrain": ["bert", english_corpus, *tiny, "--steps", "1", "--out", tmp_path / "new"],
        "finetune": [folder / "base", folder / "train.tsv", "--steps", "1", "--out", tmp_path / "new"],
        "evaluate": [folder / "tuned", folder / "test.tsv"],
        "predict": [folder / "tuned", folder / "test.tsv"],
        "fill": ["a [MASK]", "--model", folder / "base"],
        "translate": ["boat 0", "--model", desk / "ende"],
        "generate": ["the boat", "--model", ngram],
        "ask": ["the boat is here .", "where is the boat ?", "--model", ngram, "--tokens", "3"],
        "summarize": ["the boat is here .", "--model", ngram, "--tokens", "3"],
        "embed": ["a boat", "--model", folder / "base"],
        "nearest": ["the", "--model", folder / "base"],
        "analogy": ["the - a + i", "--model", folder / "base"],
        "similarity": ["a boat", "the boat", "--model", folder / "base"],
        "senses": ["boat", "--in", folder / "test.tsv", "--model", folder / "base", "--beside", folder / "tuned"],
        "layers": [folder / "mixed"],
        "figure": ["input", "--text", "a boat", "--model", folder / "base", "--out", tmp_path / "input.svg"],
        "explain": ["the baker paints a boat", "--model", folder / "tuned", "--steps", "4", "--curves"],
        "trace": ["the baker", "--model", folder / "base"],
        "runs": [folder / "tuned", folder / "mixed"],
        "map": [folder / "base", "--top", "20", "--out", tmp_path / "map.html"],
        "bias": ["--model", tmp_path / "vectors.txt"],
        "clusters": [folder / "test.tsv", "--model", folder / "base", "--clusters", "2"],
        "odd": ["the", "a", "i", "--model", folder / "base"],
        "info": [folder / "tuned"],
        "convert": [folder / "base", tmp_path / "new"],
        "demo": ["--out", tmp_path / "new"],
        "claim": ["41"],
        "studio": [folder, "--no-browser", "--port", "0"],
    }.get(verb)
    if words is None:  # JSON or a usage error: its own test has a sample of its arguments
        code, out, _ = run(verb, "--json")
        assert json.loads(out) if code == 0 else (code, out) == (2, "")
        return
    code, out, err = run(verb, *words, "--json")
    assert code == 0, err
    documents = out.splitlines() if verb == "predict" else [out]
    assert all(json.loads(document, parse_constant=pytest.fail) for document in documents)
    quiet, again, silence = run(verb, *words, "--json", "--quiet", *["--overwrite"] * (verb == "convert"))
    assert (quiet, silence) == (0, "")
    assert len(again.splitlines()) == len(out.splitlines())


@pytest.mark.parametrize("error", [[], ["--system.widht", "3"]], ids=["done", "refused"])
def test_under_torchrun_one_process_speaks_for_all(
    error: list[str], run: Run, tmp_path: Path, english_corpus: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["pretrain", "bert", english_corpus, *tiny, "--steps", "1", "--out", tmp_path / "m", *error]
    monkeypatch.setenv("RANK", "1")
    assert run(*words) == (2 if error else 0, "", "")
    monkeypatch.setenv("RANK", "0")
    code, out, err = run(*words)
    assert code == (2 if error else 0)
    assert "did you mean --system.width" in err if error else "is ready" in out


@pytest.mark.multi
def test_two_processes_give_one_result(tmp_path: Path, english_corpus: Path, tiny: list[str]) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "keel"]
    words = ["pretrain", "bert", str(english_corpus), *tiny, "--steps", "2", "--out", str(tmp_path / "m")]
    done = subprocess.run([*torchrun, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is ready: 2 steps") == 1
    assert done.stderr.count("step 2/2 ") == done.stderr.count("the text looks like English") == 1


def test_json_and_quiet(run: Run, tmp_path: Path, folder: Path, english_corpus: Path) -> None:
    words = ["pretrain", folder / "base", english_corpus, "--steps", "2", "--batch", "4", "--out", tmp_path / "m"]
    code, out, err = run(*words, "--json", "--quiet")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["steps"] == 2
    assert [event["step"] for event in result["evaluations"]] == [0, 2]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_runs(
    recipe: Path, run: Run, tmp_path: Path, english_corpus: Path, chinese_corpus: Path, tiny: list[str]
) -> None:
    if "multi30k" in recipe.stem:
        for side in ("en", "de"):
            (tmp_path / f"train.{side}").write_text("".join(f"{side} {number}\n" for number in range(12)))
        sides, small = (
            [tmp_path / "train.en", tmp_path / "train.de"],
            ["--text.vocabulary", "280", "--system.width", "64"],
        )
        flags = ["--recipe", recipe, *small, "--steps", "2", "--dev", "none", "--out", tmp_path / "m"]
        code, out, err = run("finetune", *sides, *flags)
        assert code == 0, err
        assert "2 steps" in out
        return
    corpus = chinese_corpus if "chinese" in recipe.stem else english_corpus
    recurrent = recipe.stem in ("elmo", "ulmfit-wikitext2")
    tiny = [flag.replace("system.sequence_length", "system.bptt") if recurrent else flag for flag in tiny]
    system = read_toml(recipe)["system"]
    if "final_sequence_length" in system:  # longer sequences come in smaller batches, of two micro-batches here
        tiny = [*tiny[:-1], "16", "--system.final_sequence_length", "32"]
    match system["name"]:
        case "electra":
            tiny = tiny[2:]  # it has no size tiny
        case "modernbert":
            tiny = ["--system.layers", "2", "--system.width", "64", *tiny[2:]]
        case "word2vec":
            tiny = ["--system.width", "16", "--text.vocabulary", "300"]
    code, out, err = run(
        "pretrain", corpus, "--recipe", recipe, *tiny, "--steps", "2", "--json", "--out", tmp_path / "m"
    )
    assert code == 0, err
    assert json.loads(out)["steps"] == 2
    trained = json.loads((tmp_path / "m" / "config.json").read_text())["keel"]["card"]["recipe"]["system"]
    assert trained.get("whole_word_masking", False) == system.get("whole_word_masking", False)


def test_a_recipe_can_hold_everything(run: Run, tmp_path: Path, english_corpus: Path, refused: Refused) -> None:
    recipe = tmp_path / "r.toml"
    shape = 'size = "tiny"\nlayers = 1\nwidth = 64\nsequence_length = 16\n'
    tables = f"{shape}[train]\nsteps = 1\nbatch = 4\n[text]\nvocabulary = 300\n"
    recipe.write_text(f'corpus = ["{english_corpus}"]\nout = "{tmp_path / "m"}"\n[system]\nname = "bert"\n{tables}')
    code, out, _ = run("pretrain", "--recipe", recipe, "--json")
    assert code == 0
    assert json.loads(out)["steps"] == 1
    (tmp_path / "few.tsv").write_text("sentence\tlabel\na\tx\nb\ty\n")
    whole = recipe.read_text()
    recipe.write_text(f'probe = "{tmp_path / "few.tsv"}"\n{whole}')
    refused(run("pretrain", "--recipe", recipe, "--overwrite"), 1, "cannot be held out")
    recipe.write_text(whole)
    recipe.write_text(recipe.read_text() + "hidden_size = 5\n")
    refused(run("pretrain", "--recipe", recipe), 2, f"{recipe}: --text.hidden_size", "--system.width")


def test_a_recipe_is_for_its_system(run: Run, tmp_path: Path, english_corpus: Path, refused: Refused) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('[system]\nname = "elmo"\n[train]\nsteps = 1\n')
    message = f"{recipe} is for elmo, not for rnn: leave out rnn, or use another recipe"
    for verb in ("pretrain", "finetune"):
        refused(run(verb, "rnn", english_corpus, "--recipe", recipe, "--out", tmp_path / "m"), 2, message)
    recipe.write_text('[system]\nname = "ngram"\norder = 2\n')
    code, out, err = run("pretrain", "ngram", english_corpus, "--recipe", recipe, "--out", tmp_path / "m")
    assert code == 0, err
    assert "2 steps" in out


def test_the_scores_of_a_probe_are_part_of_the_result(
    run: Run, folder: Path, english_corpus: Path, tmp_path: Path, tiny: list[str]
) -> None:
    words = ["pretrain", "bert", english_corpus, *tiny, "--steps", "1", "--probe", folder / "train.tsv"]
    code, out, _ = run(*words, "--out", tmp_path / "m")
    assert code == 0
    assert re.search(r"^probe: accuracy .* on 3 examples$", out, re.MULTILINE)
    code, out, _ = run(*words, "--json", "--out", tmp_path / "m")
    assert json.loads(out)["probe"]["main"] == "accuracy"


@dataclass(frozen=True, kw_only=True)
class Abacus(System):
    """Another system, with settings of its own and one that it shares with BERT."""

    width: int = 7
    """Width of the abacus."""
    rods: int = 13
    """With beads."""
    golden: bool = False
    """Or of wood."""

    name: ClassVar[str] = "abacus"
    pretraining_defaults: ClassVar[Train] = Train(steps=3)

    def finetuning_defaults(self, frozen: bool) -> Train:
        return Train(epochs=99)


def test_flags_are_those_of_the_system_that_is_named(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setitem(SYSTEMS, "abacus", Abacus)
    (tmp_path / "config.json").write_text('{"keel": {"system": "abacus"}}')
    (tmp_path / "r.toml").write_text('[system]\nname = "abacus"\n')
    recipe = ["pretrain", "--recipe", str(tmp_path / "r.toml")]
    for words in (["pretrain", "--out", "bert", "--system.golden", "abacus"], ["pretrain", str(tmp_path)], recipe):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        out = capsys.readouterr().out
        assert "With beads. [13]" in out
        assert "Width of the abacus. [7]" in out
        assert "[3]" in out
        assert "--system.layers" not in out
    with pytest.raises(SystemExit):
        main(["finetune", str(tmp_path), "--help"])
    assert "[99]" in capsys.readouterr().out
    refused(run("pretrain", "bert", "x.txt", "--out", "m", "--system.rods", "3"), 2, "--system.rods", "no such flag")


def test_flags_of_fine_tuning_have_no_evaluation_on_the_way(run: Run, folder: Path, refused: Refused) -> None:
    words = ["finetune", folder / "base", folder / "train.tsv", "--out", "m", "--train.evaluate_every", "5"]
    refused(run(*words), 2, "--train.evaluate_every", "no such flag")


def test_two_settings_of_one_name_are_a_mistake_of_ours() -> None:
    flags = Flags("pretrain")
    flags.section("train", Train(steps=1))
    with pytest.raises(AssertionError, match="two settings are called"):
        flags.section("system", Train(steps=1))


def test_booleans_need_no_value(run: Run) -> None:
    flags = load_command("pretrain").flags("pretrain")
    read = flags.read(
        ["--train.compile", "bert", "--system.whole_word_masking", "false", "a.txt", "--train.lr=1e-3", "b.txt"]
    )
    assert read.settings == {"compile": True, "whole_word_masking": False, "lr": 1e-3}
    assert read.words == ["bert", "a.txt", "b.txt"]
    assert flags.read(["--train.epsilon", "1e-7"]).settings == {"epsilon": 1e-7}


def test_names_in_section_flags_may_have_hyphens(run: Run) -> None:
    flags = load_command("pretrain").flags("pretrain")
    read = flags.read(["bert", "a.txt", "--text.entity-model", "my-names", "--system.whole-word-masking", "b.txt"])
    assert read.settings == {"entity_model": "my-names", "whole_word_masking": True}
    assert read.words == ["bert", "a.txt", "b.txt"]


def test_evaluate_and_predict(run: Run, folder: Path, tmp_path: Path) -> None:
    code, out, _ = run("evaluate", folder / "tuned", folder / "test.tsv", "--out", tmp_path / "e")
    assert code == 0
    assert out.startswith("accuracy ")
    assert "confusion" in out
    assert (tmp_path / "e" / "confusion.tsv").exists()
    code, out, _ = run("evaluate", folder / "tuned", folder / "test.tsv", "--json")
    assert json.loads(out)["values"]["accuracy"].keys() == {"value", "low", "high"}
    code, out, _ = run("predict", folder / "tuned", folder / "test.tsv")
    records = [json.loads(line) for line in out.splitlines()]
    assert len(records) == 10
    assert records[0].keys() == {"where", "text", "label", "probability"}


def test_stdin(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    typed("a boat\na cake\n")
    _, out, _ = run("predict", folder / "tuned", "-")
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["a boat", "a cake"]
    typed("a boat\n\na cake\n")
    _, out, _ = run("embed", "-", "--model", folder / "base")
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["a boat", "a cake"]
    typed("the [MASK] sails\n")
    _, out, _ = run("fill", "-", "--model", folder / "base", "--top", "3")
    assert len(out.splitlines()) == 3


def test_fill_and_embed(run: Run, folder: Path, tmp_path: Path) -> None:
    code, out, _ = run("fill", "the ___ paints the [MASK].", "--model", folder / "base", "--top", "2", "--json")
    assert code == 0
    assert [len(blank) for blank in json.loads(out)] == [2, 2]
    code, out, _ = run("embed", "two boats", "--model", folder / "base")
    assert len(json.loads(out)["vector"]) == 64
    code, out, _ = run("embed", "two boats", "--model", folder / "base", "--pool", "none", "--layer", "0")
    record = json.loads(out)
    assert len(record["tokens"]) == len(record["vectors"]) == len(record["offsets"])
    code, out, _ = run("embed", folder / "test.tsv", "--model", folder / "base", "--out", tmp_path / "v.npy")
    assert np.load(tmp_path / "v.npy").shape == (10, 64)
    assert [path.name for path in tmp_path.iterdir()] == ["v.npy"]


def test_precision_of_inference(run: Run, folder: Path, refused: Refused) -> None:
    def vector(*flags: str) -> np.ndarray:
        return np.array(json.loads(run("embed", "two boats", "--model", folder / "base", *flags)[1])["vector"])

    def probabilities(*flags: str) -> np.ndarray:
        _, out, _ = run("predict", folder / "tuned", folder / "test.tsv", *flags)
        return np.array([json.loads(line)["probability"] for line in out.splitlines()])

    device = ("--device", "cpu")
    for found in (vector, probabilities):
        plain, half = found(*device), found(*device, "--precision", "bf16")
        np.testing.assert_array_equal(plain, found(*device, "--precision", "fp32"))
        np.testing.assert_array_equal(half, found(*device, "--precision", "bf16"))
        assert 0 < np.abs(plain - half).max() < 0.02 * np.abs(plain).max()
    assert run("evaluate", folder / "tuned", folder / "test.tsv", "--precision", "bf16")[0] == 0
    refused(run("embed", "boats", "--model", folder / "base", "--precision", "fp16"), 2, "auto, fp32, bf16, not 'fp16'")
    refused(run("evaluate", folder / "base", folder / "test.tsv", "--precision", "bf16"), 2, "--precision", "no task")


def test_info_of_a_model_of_tokens_and_of_the_machine(
    run: Run, folder: Path, cache_dir: Path, refused: Refused
) -> None:
    _, out, _ = run("info", folder / "tuned", "--json")
    facts = json.loads(out)
    assert facts["labels"] == "food, sea"
    assert facts["parent"] == "base"
    assert "accuracy" in facts["score test"]
    assert re.fullmatch(r"\d+ in \d+:\d\d", facts["steps"])
    assert "task classify" in facts["recipe"]
    assert "epochs 1.0" in facts["recipe train"]
    cached = [run("info", index.parent)[1] for index in (cache_dir / "tokens").glob("*/index.json")]
    assert any("documents:      300" in shown for shown in cached)
    _, out, _ = run("info")
    assert torch.__version__ in out
    assert str(cache_dir) in out
    refused(run("info", folder), 1, "no folder of a model")


def test_convert_and_models_that_cannot(run: Run, folder: Path, tmp_path: Path, refused: Refused) -> None:
    code, out, _ = run("convert", folder / "base", tmp_path / "copy")
    assert code == 0
    assert "all numbers are equal" in out
    refused(run("convert", folder / "base", tmp_path / "copy"), 2, "not empty")
    refused(run("predict", folder / "base", folder / "test.tsv"), 2, "keel finetune")
    refused(run("fill", "a [MASK]", "--model", folder / "tuned"), 1, "no masked language model head")


def test_claims_answer_on_stdout(run: Run, refused: Refused) -> None:
    code, out, err = run("claim")
    assert (code, err) == (0, "")
    assert "keel claim N" in out
    _, out, _ = run("claim", "--quiet", "--json")
    assert "41" in json.loads(out)
    code, out, err = run("claim", "41")
    *rows, verdict = out.splitlines()
    assert code == 0
    assert rows
    assert verdict.startswith("Holds: ")
    assert verdict not in err  # no message is repeated
    _, out, _ = run("claim", "41", "--json")
    found = json.loads(out)
    assert found["claim"] == 41
    assert len(found["rows"]) == len(rows)
    refused(run("claim", "7"), 2, "no experiment 7")


@pytest.mark.parametrize("port", ["65536", "-1", "x"])
def test_the_studio_refuses_impossible_ports(run: Run, refused: Refused, port: str) -> None:
    refused(run("studio", "--no-browser", "--port", port), 2, "--port", "65535")


def test_senses_beside_a_model_that_lacks_the_word(run: Run, folder: Path, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "uses.txt").write_text("the sailor sees the boat\na boat sleeps\n")
    (tmp_path / "few.txt").write_text("2 2\nsailor 1 0\nsleeps 0 1\n")
    words = ["senses", "boat", "--in", tmp_path / "uses.txt", "--model"]
    code, out, err = run(*words, folder / "base", "--beside", tmp_path / "few.txt")
    assert code == 0, err
    assert "'boat' by" in out
    assert out.rstrip().endswith("has no vector for 'boat': use another word or another model")
    found = json.loads(run(*words, folder / "base", "--beside", tmp_path / "few.txt", "--json")[1])
    assert "no vector" in found[1]["error"]
    refused(run(*words, tmp_path / "few.txt"), 1, "has no vector for 'boat'")
    words[1] = "zebra"
    refused(run(*words, folder / "base"), 1, "'zebra' does not occur in the 2 sentences")


def test_a_blank_text_has_no_vector(run: Run, folder: Path, tmp_path: Path, refused: Refused) -> None:
    lines, blank = tmp_path / "lines.txt", tmp_path / "blank.txt"
    lines.write_text("\nthe sailor\n  \nthe judge\n")
    blank.write_text("\n\n")
    for nothing in ("", "   "):
        refused(run("embed", nothing, "--model", folder / "base"), 1, f"{nothing!r} contains no text")
    refused(run("embed", blank, "--model", folder / "base"), 1, f"{blank} contains no text")
    code, out, err = run("embed", lines, "--model", folder / "base")
    assert code == 0
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["the sailor", "the judge"]
    assert "2 of 4 lines are empty and skipped" in err


def test_a_bug_is_called_a_bug_and_debug_shows_where(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from keel.api import conversion

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr(conversion, "convert", fail)
    code, _, err = run("convert", "a", "b")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "this is a bug in Keel: ZeroDivisionError: two lines" in err
    code, _, err = run("convert", "a", "b", "--debug")
    assert code == 1
    assert "Traceback" in err


def test_predicted_tags_stand_beside_the_true_ones_in_a_scheme_that_conlleval_knows(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "names.conll"
    path.write_text("in O\nnew B-LOC\nyork I-LOC\n\nrome B-LOC\nis O\n\n" * 10)
    settings: dict[str, Any] = {"epochs": 30, "lr": 0.05, "batch": 4, "width": 8, "device": "cpu"}
    finetune("word2vec", path, task="tag", scheme="BIOES", dev=None, out=tmp_path / "m", **settings)
    for more in ([], ["--scheme", "BIOES"]):
        code, out, err = run("predict", tmp_path / "m", path, "--conll", *more)
        assert code == 0, err
        assert out.startswith("in O O\nnew B-LOC B-LOC\nyork I-LOC I-LOC\n\nrome B-LOC B-LOC\nis O O\n\n")
    code, _, err = run("predict", tmp_path / "m", path, "--conll", "--out", tmp_path / "out.csv")
    assert (code, "--conll" in err) == (2, True)


def test_a_long_name_of_a_fact_is_followed_by_a_space(run: Run, tmp_path: Path) -> None:
    rows = [("so good", "1"), ("so bad", "0"), ("fine", "1"), ("poor", "0")] * 10
    finetune("onehot", rows, task="classify", device="cpu", out=tmp_path / "m")
    _, out, _ = run("info", tmp_path / "m")
    (line,) = [line for line in out.splitlines() if line.startswith("score cross-validation")]
    assert re.match(r"score cross-validation: \S", line)
