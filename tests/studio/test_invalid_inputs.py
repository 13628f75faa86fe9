import pytest
from fastapi.testclient import TestClient

from keel.studio.invalid_inputs import describe_invalid

WORDS = "project/models/words"


@pytest.mark.parametrize(
    ("body", "field", "problem", "limit"),
    [
        ({"text": "film", "top": 0}, "top", "greater_than_equal", 1),
        ({"text": "film", "top": 2_000}, "top", "less_than_equal", 1_000),
        ({"text": "film", "top": 2.5}, "top", "whole_number", None),
        ({"text": "film", "top": ""}, "top", "whole_number", None),
        ({"text": 5}, "text", "text", None),
        ({"text": "x" * 50_001}, "text", "string_too_long", 50_000),
        ({}, "text", "missing", None),
        ({"text": "film", "by": "cosine"}, "by", "unknown", None),
    ],
)
def test_the_field_and_its_limit_are_named(
    client: TestClient, body: dict[str, object], field: str, problem: str, limit: int | None
) -> None:
    answer = client.post("/api/nearest", json={"model": WORDS, **body})
    assert answer.status_code == 422
    found = answer.json()
    assert found["invalid"] == {"field": field, "problem": problem, "limit": limit}
    assert found["error"].startswith(f"{field} ")
    assert "Input" not in found["error"]
    assert limit is None or f"{limit:,}" in found["error"]


def test_choices_are_listed(client: TestClient) -> None:
    answer = client.post("/api/map", json={"model": WORDS, "by": "magic"}).json()
    assert "pca" in answer["error"]


def test_a_body_that_cannot_be_read() -> None:
    found = describe_invalid([{"type": "json_invalid", "loc": ("body",), "msg": "JSON decode error", "ctx": {}}])
    assert found["error"].startswith("the request ")


@pytest.mark.parametrize(
    ("body", "expected"), [("{bad", "not valid JSON"), ("[1]", "JSON object"), ("", "JSON object")]
)
def test_a_malformed_body_gets_one_sentence(client: TestClient, body: str, expected: str) -> None:
    answer = client.post("/api/nearest", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert expected in answer.json()["error"]
    assert "invalid" not in answer.json()


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_has_no_prediction(client: TestClient, text: str) -> None:
    answer = client.post("/api/predict", json={"model": "project/models/classifier", "text": text})
    assert answer.status_code == 400
    assert "empty" in answer.json()["error"]
