"""Keel's sentences in answers can be translated; what users wrote never is."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from keel.studio import answer_language
from keel.studio.answer_language import map_sentences

MODELS = "project/models"
FOREIGN = "译文"


@pytest.fixture
def sentences(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sentences that were translated, each of which becomes 译文."""
    found: list[str] = []

    def translate(text: str, language: str) -> str:
        assert language == "zh"
        found.append(text)
        return FOREIGN

    monkeypatch.setattr(answer_language, "translate", translate)
    return found


def ask(client: TestClient, path: str, body: dict[str, Any] | None, language: str = "zh-CN,zh;q=0.9") -> Any:
    """The answer to a request, as plain data."""
    method = "GET" if body is None else "POST"
    return client.request(method, f"/api/{path}", headers={"Accept-Language": language}, json=body).json()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("nearest", {"model": f"{MODELS}/words", "text": "zebra"}),
        ("nearest", {"model": f"{MODELS}/words", "text": "film", "top": 0}),
        ("nothing", None),
    ],
)
def test_errors_have_the_language_of_the_request(
    client: TestClient, sentences: list[str], path: str, body: dict[str, Any] | None
) -> None:
    english = ask(client, path, body, "en-GB,zh")["error"]
    assert sentences == []
    assert ask(client, path, body)["error"] == FOREIGN
    assert sentences == [english]


def test_refusals_of_the_guard_have_a_language_too(client: TestClient, sentences: list[str]) -> None:
    headers = {"Authorization": "", "Accept-Language": "zh"}
    assert client.get("/api/models", headers=headers).json()["error"] == FOREIGN
    assert len(sentences) == 1


def test_captions_notes_and_findings_are_translated(client: TestClient, sentences: list[str]) -> None:
    shown = ask(client, "map", {"model": f"{MODELS}/words", "top": 5})
    assert shown["caption"] == FOREIGN
    checked = ask(client, "check", {"name": "a.tsv", "content": "text\tlabel\na\tx\na\tx\n", "task": "classify"})
    assert {each["cause"] for each in checked["findings"]} == {FOREIGN}
    (facts,) = checked["files"].values()
    assert facts["contents"] == FOREIGN
    assert facts["labels"] == {"x": 2}
    assert any("duplicate" in each for each in sentences)


def test_tensors_facts_and_scores_have_chinese_names(client: TestClient) -> None:
    traced = ask(client, "trace", {"model": f"{MODELS}/bert", "text": "the old [MASK]"})
    english = ask(client, "trace", {"model": f"{MODELS}/bert", "text": "the old [MASK]"}, "en")
    kinds = {each["name"]: each for each in traced["kinds"]}
    assert kinds["查询"]["axes"] == ["batch", "heads", "queries", "head dim"]  # names of the labels along them
    assert traced["axis_names"]["heads"] == "注意力头"
    assert [*traced["steps"][0]["predictions"]] == ["第 4 位的 [MASK]"]
    assert [*english["steps"][0]["predictions"]] == ["[MASK] at 4"]
    assert traced["steps"][0]["labels"] == english["steps"][0]["labels"]
    assert any("[MASK] 最关注" in each for each in traced["explanations"])
    pair = ask(client, "trace", {"model": f"{MODELS}/bert", "text": "the old film", "second": "was good"})
    assert {each["token"][0] for each in pair["steps"][0]["predictions"]["下一句"]} == {"B"}
    checked = ask(client, "check", {"file": "project/train.tsv"})
    facts = {each["name"]: each for each in checked["facts"]["project/train.tsv"]}
    assert facts["内容"]["value"] == "32 条文本"
    assert facts["每条的字符数"]["parts"][0]["name"] == "中位数"
    assert "labels" not in facts
    assert ask(client, "errors", {"model": f"{MODELS}/classifier", "file": "project/test.tsv"})["names"] == {
        "accuracy": "准确率",
        "binary_f1": "二分类 F1",
        "matthews": "Matthews 相关系数",
    }
    assert ask(client, "report", {"id": "project/report"})["names"] == {"accuracy": "准确率"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("models", None),
        ("runs", None),
        ("files", None),
        ("nearest", {"model": f"{MODELS}/words", "text": "film"}),
        ("fill", {"model": f"{MODELS}/bert", "text": "the old [MASK] was good"}),
        ("attention", {"model": f"{MODELS}/bert", "text": "the old film"}),
        ("trace", {"model": f"{MODELS}/bert", "text": "the old film"}),
        ("senses", {"model": f"{MODELS}/bert", "text": "film", "sentences": ["the old film", "film , the story"]}),
        ("explain", {"model": f"{MODELS}/classifier", "text": "the old film"}),
        ("predict", {"model": f"{MODELS}/classifier", "text": "a quiet garden"}),
        ("errors", {"model": f"{MODELS}/classifier", "file": "project/test.tsv"}),
        ("clusters", {"model": f"{MODELS}/bert", "file": "project/train.tsv", "clusters": 2, "most": 20}),
        ("map", {"model": f"{MODELS}/words", "top": 5, "clusters": 2}),
        (
            "bias",
            {
                "model": f"{MODELS}/bert",
                "pronouns": "good:old",
                "occupations": ["film", "story"],
                "language": "en",
                "by": "masked",
            },
        ),
    ],
)
def test_texts_words_labels_and_names_of_users_are_not(
    client: TestClient, sentences: list[str], path: str, body: dict[str, Any] | None
) -> None:
    answer = ask(client, path, body)
    assert "error" not in answer
    own = {"film", "old", "good", "bad", "the old film was good", "classifier", f"{MODELS}/bert"}
    assert own.isdisjoint(sentences)
    assert set(_texts(body)).isdisjoint(sentences)
    for shown, english in zip(_texts(answer), _texts(ask(client, path, body, "en")), strict=True):
        assert shown == english or (shown == FOREIGN and english in sentences)


def test_a_user_cannot_name_a_field_into_a_sentence() -> None:
    answer = {"probabilities": {"error": "x", "caption": "y"}, "text": "error", "files": [{"name": "notes.tsv"}]}
    assert map_sentences(answer, "predict", str.upper) == answer
    assert map_sentences(answer, "files", str.upper) == answer


def _texts(value: Any) -> list[str]:
    """All texts of plain data, in their order."""
    match value:
        case str():
            return [value]
        case dict():
            return [text for each in value.values() for text in _texts(each)]
        case list():
            return [text for each in value for text in _texts(each)]
        case _:
            return []
