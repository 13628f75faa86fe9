"""Models in the package: found by name wherever a model is expected, small, fast to load, and as their cards say."""

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining

import keel
from keel.api import model_loading
from keel.api.comparison_rows import resolve_rows
from keel.api.model_loading import DEFAULTS, default_model
from keel.cli import main
from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.events import ignore
from keel.formats.bundled_models import FOLDER, bundled_models, locate
from keel.systems.electra import ElectraPretraining
from keel.systems.gpt import GptPretraining

MOST_BYTES = {
    "english": 28e6,
    "chinese": 22e6,
    "multilingual": 40e6,
    "english-gpt": 22e6,
    "english-words": 4e6,
    "chinese-words": 4e6,
}
PERSONAL = re.compile(r"[\w.+-]+@[\w-]+\.\w+|\+?\d[\d ()-]{8,}\d")
SCORES = {
    "english": "GLUE-5",
    "chinese": "ChnSentiCorp",
    "multilingual": "WikiAnn",
    "english-gpt": "LAMBADA",
    "english-words": "WordSim-353",
    "chinese-words": "wordsim-240",
}
"""A score that the card of each model has."""
CHINESE = "中国的首都是北[MASK]。"


def test_every_bundled_model_is_a_default_within_its_size() -> None:
    names = {name for each in DEFAULTS.values() for one in each.values() for name in one}
    assert set(bundled_models()) <= names
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 80e6
    for name, folder in bundled_models().items():
        assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST_BYTES[name]
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert card.startswith("---\nlicense:")
        for word in ("Training data", "Licence", "Time"):
            assert f"| {word} |" in card
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert config["keel"]["card"]["title"] == name
        assert "/" not in config["keel"]["card"]["command"]
        assert not PERSONAL.search((folder / "tokenizer.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", bundled_models())
def test_a_card_states_text_licences_minutes_storage_and_scores(name: str) -> None:
    card = (FOLDER / name / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+)", card, re.MULTILINE))
    assert re.search(r"\d MB", rows["Training data"])
    assert re.fullmatch(r"text and weights: .+", rows["Licence"].strip())
    assert "recipes/" in rows["Pre-training"]
    assert re.search(r"\d+ minutes", rows["Time"])
    assert re.search(r"bits per weight", rows["Storage"])
    scores = [key for key in rows if re.search(SCORES[name], key)]
    assert scores
    assert all(re.search(r"\d", rows[key]) for key in scores)


def test_a_file_or_folder_comes_before_a_bundled_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("chinese") == FOLDER / "chinese"
    (tmp_path / "chinese").mkdir()
    assert locate("chinese") == Path("chinese")
    assert locate("klingon") == Path("klingon")


@pytest.mark.parametrize("name", bundled_models())
def test_loading_takes_less_than_half_a_second_of_cpu_time(name: str) -> None:
    keel.Model.load(name)
    start = time.process_time()
    keel.Model.load(name)
    assert time.process_time() - start < 1.0, "with two threads, half of it"


def test_the_chinese_encoder_fills_masks_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert keel.fill(CHINESE)[0][0].word == "京"
    assert main(["fill", CHINESE]) == 0
    out, err = capsys.readouterr()
    assert out.split()[1] == "京"
    assert "model: chinese, which comes with Keel; choose another one with --model" in err


def test_the_english_models_fill_masks_and_write_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Paris" in [each.word for each in keel.fill("The capital of France is [MASK].")[0]]
    assert main(["generate", "The city of Berlin", "--tokens", "8", "--seed", "1"]) == 0
    assert "model: english-gpt, which comes with Keel" in capsys.readouterr().err


def test_texts_are_embedded_and_compared_without_a_model() -> None:
    first, second = keel.embed(["今天天气很好", "今天天气不错"])
    assert first.shape == (384,)
    cosine = float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))
    assert keel.similarity("今天天气很好", "今天天气不错") == pytest.approx(cosine, abs=1e-5)
    assert keel.similarity("今天天气很好", "股票市场下跌") < cosine


@pytest.mark.parametrize(
    ("word", "name", "relatives"),
    [
        ("king", "english-words", {"queen", "prince"}),
        ("Paris", "english-words", {"brussels", "lyon", "marseille"}),
        ("computer", "english-words", {"computers", "software", "hardware"}),
        ("Zürich", "english-words", {"bern", "basel"}),
        ("国王", "chinese-words", {"王后", "王子", "女王"}),
        ("北京", "chinese-words", {"上海", "天津"}),
    ],
)
def test_neighbours_of_a_word_come_from_the_vectors_of_its_language(
    word: str, name: str, relatives: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nearest", word, "--top", "20"]) == 0
    out, err = capsys.readouterr()
    assert f"model: {name}, which comes with Keel" in err
    assert len(relatives & set(out.split()[1::2])) >= 2
    assert keel.nearest(word.lower(), model=name)[0] == keel.nearest(word, model=name)[0]


def test_word_vectors_answer_analogies_and_find_the_odd_word() -> None:
    assert keel.analogy("king - man + woman")[0].word == "queen"
    assert keel.analogy("Tokyo - Japan + Germany", top=1)[0].word == "berlin"
    assert keel.analogy("东京 - 日本 + 法国")[0].word == "巴黎"
    assert keel.odd("breakfast cereal dinner lunch")[0].word == "cereal"
    assert keel.odd("苹果 香蕉 汽车 葡萄")[0].word == "汽车"


def test_words_are_compared_by_word_vectors_and_texts_by_the_encoder() -> None:
    notes: list[str] = []

    def similarity(first: str, second: str) -> float:
        notes.clear()
        found = keel.similarity(first, second, on_event=lambda event: notes.append(str(event)))
        assert len(notes) == 1
        return found

    assert similarity("cat", "Dog") > similarity("cat", "parliament") + 0.2
    assert "english-words" in notes[0]
    assert similarity("猫", "狗") > similarity("猫", "议会") + 0.2
    assert "chinese-words" in notes[0]
    similarity("我喜欢猫", "我喜欢狗")
    assert "model: chinese," in notes[0]


def test_word_vectors_stand_in_for_an_encoder_that_keel_does_not_have() -> None:
    """`english` embeds sentences worse (docs/log.md)."""
    assert keel.embed("a good film").shape == (128,)
    assert keel.nearest("a good film", among=["the weather is cold", "a great movie"])[0].word == "a great movie"


def test_a_map_needs_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", "--words", "国王 女王 男人 女人", "--out", str(tmp_path / "zh.svg")]) == 0
    assert "model: chinese-words" in capsys.readouterr().err
    svg = keel.word_map(pairs="france:paris japan:tokyo", out=tmp_path / "en.svg").read_text(encoding="utf-8")
    assert svg.count("<circle") == 4


def test_word_vectors_can_be_fine_tuned_and_compared(tmp_path: Path) -> None:
    texts = [("a wonderful story", "good"), ("a terrible mess", "bad")] * 10
    model = keel.finetune("english-words", texts, dev=None, epochs=20, progress=False)
    assert [model.predict(text).label for text in ("wonderful", "terrible")] == ["good", "bad"]
    rows = resolve_rows(["onehot", "english-words"], "classify", False, tmp_path, ignore)
    assert [(row.name, row.pretrained) for row in rows][1] == ("english-words", False)


@pytest.mark.parametrize("name", ["english-words", "chinese-words"])
def test_a_vocabulary_has_no_personal_data(name: str) -> None:
    """Numbers of more than five digits could be telephone numbers; an address would be a word with an @."""
    words = keel.Model.load(name).vector_space().words
    assert len(words) == len(set(words)) == 45_000
    assert not [word for word in words if re.search(r"\d{6}|.@|@.", word)]


def test_word_vectors_are_judged_as_their_cards_say(data_dir: Path) -> None:
    tasks = data_dir / "tasks"
    files = {
        "english-words": (tasks / "wordsim" / "EN-WS-353-ALL.txt", tasks / "google_analogies/questions-words.txt.xz"),
        "chinese-words": (tasks / "zh" / "wordsim" / "240.txt", tasks / "zh/ca8_analogy/CA8/semantic.txt.xz"),
    }
    for name, judged in files.items():
        card = (FOLDER / name / "README.md").read_text(encoding="utf-8")
        for path in judged:
            score = f"{100 * keel.evaluate(name, path).main_value:.1f}"
            assert f"| {score} |" in card, (name, path)


def test_without_a_model_for_the_language_one_must_be_named() -> None:
    with pytest.raises(UsageError, match="Keel comes with no causal language model for Chinese: choose a model with"):
        default_model("causal language model", "你好", ignore)


@pytest.mark.parametrize(
    ("text", "expected", "notes"),
    [
        ("The farmer has seen the boat.", "english", 1),
        ("Der Bauer hat das Boot gesehen.", "english", 2),
        ("die me", "english", 1),
        ("42", "english", 1),
        ("今天天气很好", "chinese", 1),
        ("Он не видел лодку.", "", 0),
        ("漢語很難學", "chinese", 2),  # traditional characters, which it has not learned
        ("谷に住む農夫は誰も見なかった。", "", 0),
        ("Ο αγρότης δεν είδε κανέναν.", "", 0),
    ],
)
def test_the_language_of_a_text_decides(text: str, expected: str, notes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {"english": Path("english"), "chinese": Path("chinese")}
    monkeypatch.setattr(model_loading, "bundled_models", lambda: folders)
    events: list[dict[str, Any]] = []
    if not expected:
        with pytest.raises(UsageError, match="choose a model with"):
            default_model("encoder", text, events.append)
        return
    assert default_model("encoder", text, events.append) == expected
    assert len(events) == notes
    folders["multilingual"] = Path("multilingual")
    assert default_model("encoder", "Он не видел лодку.", events.append) == "multilingual"


def test_a_name_is_a_model_where_a_folder_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "chinese"]) == 0
    assert "24,844,546" in capsys.readouterr().out
    texts = [("很好", "正"), ("很差", "负")] * 4
    tuned = keel.finetune("chinese", texts, dev=None, steps=1, progress=False)
    assert tuned.card.parent == "chinese"
    with pytest.raises(UsageError, match="did you mean 'chinese'"):
        keel.finetune("chinees", texts)


def test_a_converted_copy_has_equal_outputs_in_transformers(tmp_path: Path) -> None:
    keel.convert("chinese", tmp_path / "copy")
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "copy")
    ours = keel.Model.load("chinese", device="cpu")
    ids = ours.system.build_inputs(ours.tokenizer, ours.tokenizer.encode(CHINESE).ids).ids
    position = ids.index(ours.tokenizer.mask_id)
    with torch.inference_mode():
        probabilities = theirs(torch.tensor([ids])).logits[0, position].softmax(-1)
    for word, probability in ours.fill(CHINESE, top=3)[0]:
        assert float(probabilities[ours.tokenizer.encode(word).ids[0]]) == pytest.approx(probability, abs=1e-5)


def test_converted_english_copies_have_equal_outputs_in_transformers(tmp_path: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog."
    for name, kind in (("english", AutoModelForPreTraining), ("english-gpt", AutoModelForCausalLM)):
        keel.convert(name, tmp_path / name)
        ours = keel.Model.load(name, device="cpu")
        ids = torch.tensor([ours.system.build_inputs(ours.tokenizer, ours.tokenizer.encode(text).ids).ids])
        with torch.inference_mode():
            theirs = kind.from_pretrained(tmp_path / name)(ids).logits
            batch = TokenBatch.pad(ids.tolist())
            if isinstance(ours.objective, ElectraPretraining):
                found = ours.objective.detect(batch)
            else:
                assert isinstance(ours.objective, GptPretraining)
                found = ours.objective.logits_at(ids, torch.arange(ids.numel()))[None]
        torch.testing.assert_close(found, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "command",
    [
        "attention 他喜欢猫 --model chinese",
        "trace 他喜欢猫 --model chinese",
        "senses 猫 --in TEXTS --model chinese",
        "nearest 他喜欢猫 --in TEXTS --model chinese",
        "embed TEXTS --model chinese",
        "similarity 猫 狗 --model chinese-words",
        "analogy 东京-日本+法国 --model chinese-words",
        "odd 苹果,香蕉,汽车 --model chinese-words",
        "map chinese-words --words 国王,女王,男人,女人",
        "clusters TEXTS --model chinese",
        "retrieval chinese PAIRS",
        "info chinese",
        "convert chinese OUT",
        "predict chinese TEXTS: has no task",
        "evaluate chinese PAIRS: has no task",
        "explain 很好 --model chinese: has no task",
        "layers chinese: has no scalar mix",
        "segment TEXTS --model chinese: does not segment",
        "generate 今天 --model chinese: does not generate",
        "summarize 今天 --model chinese: does not generate",
        "ask 他喜欢猫 他喜欢什么 --model chinese: does not generate",
        "translate TEXTS --model chinese: is no seq2seq model",
    ],
)
def test_a_name_is_a_model_for_every_verb(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verb runs, or says what this model cannot do; pretrain and finetune are below, fill and compare above."""
    monkeypatch.chdir(tmp_path)  # map writes map.html
    texts, pairs = tmp_path / "texts.txt", tmp_path / "pairs.tsv"
    texts.write_text("他喜欢猫\n我喜欢猫\n猫在家里\n股票市场下跌\n今天天气很好\n", encoding="utf-8")
    pairs.write_text("今天\ttoday\n天气\tweather\n", encoding="utf-8")
    paths = {"TEXTS": texts, "PAIRS": pairs, "OUT": tmp_path / "out"}
    words, _, refusal = command.partition(": ")
    code = main([str(paths.get(word, word.replace(",", " "))) for word in words.split(" ")])
    err = capsys.readouterr().err
    assert (code != 0) == bool(refusal), err
    assert refusal in err


def test_pretraining_continues_a_bundled_model(tmp_path: Path) -> None:
    model = keel.pretrain("chinese", ["今天天气很好。", "他喜欢猫。"] * 9, out=tmp_path / "new", steps=1, batch=2)
    assert model.card.parent == "chinese"
