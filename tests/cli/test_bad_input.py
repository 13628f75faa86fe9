"""What users get wrong: one sentence with the place and the remedy, the right exit code, nothing half-written."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from keel.tasks import TASKS

ENCODER_TASKS = [name for name in TASKS if name != "seq2seq"]
Run = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pretran"], "did you mean 'pretrain'"),
        (["pretrain", "bert", "x.txt", "--out", "m", "--layers", "3"], "use --system.layers"),
        (["pretrain", "bert", "x.txt", "--out", "m", "--hidden_size", "64"], "use --system.width"),
        (["pretrain", "bert", "x.txt", "--out", "m", "--learning-rate=1"], "use --lr"),
        (["pretrain", "bert", "x.txt", "--out", "m", "--epsilon", "1"], "use --train.epsilon"),
        (["pretrain", "bert", "x.txt", "--out", "m", "--steps", "many"], "--steps must be a whole number, not 'many'"),
        (["pretrain", "ngram", "x.txt", "--out", "m", "--system.memory", "100MB"], "a number, not '100MB' (Memory"),
        (["pretrain", "bert", "x.txt", "--out", "m", "--steps", "-5"], "above 0, not --steps -5"),
        (["pretrain", "bert", "x.txt", "--out", "m", "--size", "huge"], "tiny, mini"),
        (["pretrain", "brt", "x.txt", "--out", "m"], "nor a model folder: did you mean 'bert'?"),
        (["pretrain", "lobster", "x.txt", "--out", "m"], "nor a model folder: use one of ngram, onehot"),
        (["info", "m", "--out", "x"], "--help lists all flags"),
        (["layers", "m", "--quite"], "did you mean --quiet?"),
        (["pretrain", "bert", "x.txt"], "--out is missing"),
        (["pretrain"], "give a system and a corpus"),
        (["finetune", "m", "x.tsv"], "--out"),
        (["finetune", "m", "x.tsv", "--out", "n", "--task", "clasify"], "did you mean 'classify'"),
        (["fill", "Он не видел [MASK]."], "choose a model with --model"),
        (["fill", "a", "b", "--model", "m"], "one argument too many"),
        (["embed", "a", "--model", "m", "--pool", "none", "--out", "v.npy"], "--pool none"),
        (["evaluate", "m", "x.tsv", "--device", "gpux"], "device"),
    ],
)  # fmt: skip
def test_wrong_usage_is_answered_with_the_right_one(
    words: list[str], sentence: str, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(folder)
    words = [
        {"m": "base" if "finetune" in words else "tuned"}.get(word, word) if number else word
        for number, word in enumerate(words)
    ]
    refused(run(*words), 2, sentence)


def test_bad_corpora(run: Run, tmp_path: Path, tiny: list[str], refused: Refused) -> None:
    def pretrain(corpus: str | Path, *flags: str) -> tuple[int, str, str]:
        return run("pretrain", "bert", corpus, *tiny, "--steps", "1", *flags, "--out", tmp_path / "m")

    empty, one, table = tmp_path / "empty.txt", tmp_path / "one.txt", tmp_path / "table.csv"
    empty.write_text("\n \n")
    one.write_text("One sentence only.\n")
    table.write_text("title,body\na,b\n")
    refused(pretrain(empty), 1, "empty.txt", "no text")
    refused(pretrain(one), 1, "document")
    refused(pretrain(tmp_path), 1, f"{tmp_path} is a folder", "*.txt")
    refused(pretrain(tmp_path / "none.txt"), 1, "no file")
    refused(pretrain("no such file"), 1, "there is no file no such file: check the name and the current folder")
    refused(pretrain(table), 1, "table.csv:2", "'title', 'body'", "--text-column")
    assert not (tmp_path / "m" / "model.safetensors").exists()


def test_bad_labels(run: Run, folder: Path, tmp_path: Path, refused: Refused) -> None:
    def finetune(rows: str, *flags: str | Path) -> tuple[int, str, str]:
        (tmp_path / "t.tsv").write_text(rows)
        return run("finetune", folder / "base", tmp_path / "t.tsv", *flags, "--steps", "1", "--out", tmp_path / "m")

    refused(finetune("sentence\tlabel\n" + "a\tx\n" * 20), 1, "t.tsv", "only one class, 'x'")
    refused(finetune("sentence\tlabel\na\tx\n", "--label-column", "star"), 1, "no column 'star'", "'sentence', 'label'")
    unseen = tmp_path / "unseen.tsv"
    unseen.write_text("sentence\tlabel\na\tsea\nb\tsky\n")
    words = ["finetune", folder / "base", folder / "train.tsv", "--test", unseen, "--out", tmp_path / "u"]
    code, _, messages = run(*words, "--steps", "1")
    assert code == 0
    assert "unseen.tsv:3: 1 example has a label that is not in" in messages
    assert not (tmp_path / "m" / "model.safetensors").exists()
    floats = "sentence\tlabel\n" + "good\t1.0\nbad\t0.0\n" * 20
    code, out, err = finetune(floats)
    assert code == 0
    assert "m is ready: 1 step in" in out
    assert "look like numbers and are read as 2 classes" in err


@pytest.mark.parametrize("text", ["a gorgeous film", "gorgeous, truly", "这部电影很好", "none.txt", "long " * 99])
def test_a_text_is_no_file_of_texts(text: str, run: Run, folder: Path, refused: Refused) -> None:
    refused(run("predict", folder / "tuned", text), 1, f"there is no file {text[:60]}", "give a file", "- for stdin")


def test_a_file_that_is_not_there(run: Run, folder: Path, tmp_path: Path, refused: Refused) -> None:
    for task in ENCODER_TASKS:
        words = ["finetune", folder / "base", tmp_path / "none.conll", "--task", task, "--out", tmp_path / "m"]
        refused(run(*words), 1, f"there is no file {tmp_path / 'none.conll'}: check the name and the current folder")


@pytest.mark.parametrize(
    "text",
    [
        "EU NNP I-NP B-ORG\nrejects VBZ I-VP O\n\nPeter NNP I-NP B-PER\n",
        "EU B-ORG\nrejects O\n\nPeter B-PER\n",
        "EU\tB-ORG\nrejects\tO\n\nRome\tB-ORG\nis\tO\n",
        "the DT\ncat NN\nsat VB\n\nthe DT\ndog NN\nran VB\n\na DT\n",
        "the/DT cat/NN\na/DT dog/NN sat/VB\n",
    ],
)
def test_tagged_words_are_no_labelled_texts(
    text: str, run: Run, folder: Path, tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "ner.train").write_text(text)
    words = ["finetune", folder / "base", tmp_path / "ner.train", "--task", "classify", "--out", tmp_path / "m"]
    refused(run(*words), 1, "ner.train looks like words with tags", "--task tag")
    (tmp_path / "ner.train").write_text("EU\tNNP\tI-NP\tVERB\tB-ORG\n" * 3)
    refused(run(*words), 1, "ner.train: the columns of text are ambiguous", "--task tag")


def test_two_files_are_no_two_texts(run: Run, folder: Path, refused: Refused, tmp_path: Path) -> None:
    for second in (folder / "test.tsv", tmp_path / "none.tsv"):
        both, message = (folder / "train.tsv", second), "two parallel files are for --task seq2seq"
        refused(run("predict", folder / "tuned", *both), 2, message)
        refused(run("evaluate", folder / "tuned", *both), 2, message)
        for task in ENCODER_TASKS:
            words = ["finetune", folder / "base", *both, "--task", task, "--out", tmp_path / "m"]
            refused(run(*words), 2, message, str(second))


def test_bad_model_folders(run: Run, folder: Path, tmp_path: Path, refused: Refused) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    for path in (folder / "base").iterdir():
        if path.is_file():
            (bad / path.name).write_bytes(path.read_bytes())
    weights = bad / "model.safetensors"
    whole, tensors = weights.read_bytes(), load_file(weights)

    def tried() -> tuple[int, str, str]:
        return run("fill", "a [MASK]", "--model", bad)

    name = next(name for name in tensors if "query.weight" in name)
    save_file({other: tensor for other, tensor in tensors.items() if other != name}, weights)
    refused(tried(), 1, str(bad), name)
    save_file({**tensors, name: tensors[name][:, :1].contiguous()}, weights)
    refused(tried(), 1, str(bad), name)
    weights.write_bytes(whole[: len(whole) // 2])
    refused(tried(), 1, str(weights), "truncated")
    weights.write_bytes(pickle.dumps({"a": 1}))
    refused(tried(), 1, str(weights), "pickle", "keel convert")
    weights.unlink()
    refused(tried(), 1, str(bad), "model.safetensors")
    refused(run("fill", "a [MASK]", "--model", tmp_path / "nowhere"), 1, "nowhere")


def test_folders_that_cannot_be_written(
    run: Run, folder: Path, english_corpus: Path, tmp_path: Path, tiny: list[str], refused: Refused
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")

    def pretrain(out: Path, *flags: str) -> tuple[int, str, str]:
        return run("pretrain", "bert", english_corpus, *tiny, "--steps", "1", "--out", out, *flags)

    refused(pretrain(tmp_path / "full"), 2, "not empty", "--out")
    refused(pretrain(tmp_path / "full", "--overwrite"), 2, "not empty")
    refused(pretrain(tmp_path / "file"), 2, "is a file")
    refused(pretrain(tmp_path / "file" / "below"), 1, "file")
    refused(pretrain(Path("/proc/nothing")), 1, "/proc/nothing")  # not even root can write there
    refused(run("finetune", folder / "base", folder / "train.tsv", "--out", folder / "base"), 2, "choose another --out")
    assert (tmp_path / "full" / "thesis.txt").read_text() == (tmp_path / "file").read_text() == "mine"


def test_bad_tags(run: Run, folder: Path, tmp_path: Path, refused: Refused) -> None:
    def finetune(text: str, *flags: str) -> tuple[int, str, str]:
        path = tmp_path / "names.txt"
        path.write_text(text)
        return run("finetune", folder / "base", path, "--task", "tag", *flags, "--epochs", "1", "--out", tmp_path / "m")

    good = "the O\nsailor B-PER\n\na O\nbaker B-PER\n\n" * 5
    refused(finetune(good + "boat\n"), 1, "names.txt:31", "1 column, but others have 2", "add the tag of the word")
    refused(finetune("the\nsailor\n\na\nbaker\n"), 1, "names.txt", "words without tags")
    refused(finetune(good, "--label-column", "3"), 2, "--label-column 3", "give 1 to 2")
    refused(finetune(good.replace("O", "B-PER")[:30]), 1, "cannot be held out")
    refused(run("finetune", folder / "base", folder / "train.tsv", "--crf", "--out", tmp_path / "m"), 2, "--task tag")
    code, out, err = finetune(good + f"{'x' * 5000} O\nhe I-PER\n", "--crf")
    assert code == 0, err
    assert "names.txt:31: a word of 5,000 characters" in err
    assert "names.txt:32: 1 invalid tag in BIO" in err
    assert f"keel evaluate {tmp_path / 'm'} TEST.conll" in out
    path = tmp_path / "names.txt"
    code, out, _ = run("predict", tmp_path / "m", path, "--conll")
    lines = out.splitlines()
    assert code == 0
    assert lines[2] == ""
    assert [line.split()[:2] for line in lines[:2]] == [["the", "O"], ["sailor", "B-PER"]]
    assert len(lines[0].split()) == 3
    code, out, _ = run("evaluate", tmp_path / "m", path)
    assert code == 0
    assert out.startswith("entity F1 ")
    refused(run("predict", folder / "tuned", folder / "test.tsv", "--conll"), 2, "--conll")
