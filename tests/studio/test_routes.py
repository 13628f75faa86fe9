import base64
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import keel
from keel.api.figures import FIGURES
from keel.explain.bias.bias_report import CAUTION
from keel.studio import workspace

BERT, CLASSIFIER, GPT, WORDS = (f"project/models/{name}" for name in ("bert", "classifier", "gpt", "words"))


def post(client: TestClient, path: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_models_are_listed_with_what_they_can_do(client: TestClient) -> None:
    models = {each["id"]: each for each in client.get("/api/models").json()["models"]}
    assert models["chinese"]["bundled"]
    assert models["chinese"]["language"] == "zh"
    assert {"fill", "next_sentence", "attention", "senses"} <= {*models[BERT]["can"]}
    assert {"predict", "explain", "layers"} <= {*models[CLASSIFIER]["can"]}
    assert "fill" not in models[CLASSIFIER]["can"]
    assert models[CLASSIFIER]["labels"] == ["bad", "good"]
    assert not models[CLASSIFIER]["pair"]
    assert {"generate", "ask", "attention"} <= {*models[GPT]["can"]}
    assert {"nearest", "bias"} <= {*models[WORDS]["can"]}
    assert {"nearest", "similarity"} <= {*models[WORDS]["can"]}
    assert "attention" not in models[WORDS]["can"]
    damaged = models["project/models/damaged"]
    assert damaged["error"]
    assert damaged["can"] == []


def test_try(client: TestClient, project: Path) -> None:
    filled = post(client, "fill", model=BERT, text="the [MASK] film", top=3)
    expected = keel.fill("the [MASK] film", model=project / "models" / "bert", top=3)
    assert [each["word"] for each in filled["masks"][0]] == [each.word for each in expected[0]]
    generated = post(client, "generate", model=GPT, text="the old", tokens=3, seed=1)
    assert generated["trace"]["texts"][0]["hypotheses"]
    searched = post(client, "generate", model=GPT, text="the old", tokens=3, beams=2, best=2)
    assert len(searched["best"]) == 2
    predicted = post(client, "predict", model=CLASSIFIER, text="a quiet garden")
    assert predicted["task"] == "classify"
    label, shares = predicted["prediction"]["label"], predicted["probabilities"]
    assert label == max(shares, key=shares.__getitem__)
    assert sum(shares.values()) == pytest.approx(1)
    follows = post(client, "next_sentence", model=BERT, text="the old film", second="was good")
    assert 0 < follows["is_next"] < 1
    answered = post(client, "ask", model=GPT, passage="the old film was good", question="what was good?")
    assert "Q: what was good?" in answered["prompt"]


def test_words(client: TestClient) -> None:
    found = post(client, "nearest", model=WORDS, text="film", top=2)["neighbors"]
    assert len(found) == 2
    assert found[0]["similarity"] >= found[1]["similarity"]
    solved = post(client, "analogy", model=WORDS, text="film - good + old")
    assert (solved["positive"], solved["negative"]) == (["film", "old"], ["good"])
    points = {each["word"]: np.array(each["point"]) for each in solved["words"]}
    assert {*points} == {"film", "good", "old", solved["neighbors"][0]["word"]}
    assert np.allclose(points["film"] - points["good"] + points["old"], solved["target"])
    assert not np.allclose(points["film"], points["good"])
    assert post(client, "similarity", model=WORDS, text="film", second="film")["similarity"] == pytest.approx(1)
    uses = post(client, "senses", model=BERT, text="film", sentences=["the old film", "the film , the story", "no"])
    assert len(uses["uses"]) == 2
    assert "1 of 3 sentences" in uses["notes"][0]


def test_attention_has_all_heads_and_each_in_full(client: TestClient, project: Path) -> None:
    text = "the old film was good"
    found = post(client, "attention", model=BERT, text=text)
    exact = keel.attention(text, model=project / "models" / "bert")
    tokens = len(exact.queries)
    assert found["queries"] == exact.queries
    assert "weights" not in found
    pictures = base64.b64decode(found["thumbnails"])
    assert len(pictures) == exact.weights.shape[0] * exact.weights.shape[1] * found["rows"] * found["columns"]
    head = post(client, "attention/head", model=BERT, text=text, layer=2, head=1)
    weights = np.frombuffer(base64.b64decode(head["weights"]), np.uint8).reshape(tokens, tokens)
    assert np.abs(weights / 255 * head["largest"] - exact.head(2, 1)).max() <= head["largest"] / 509


def test_traces_have_all_tensors(client: TestClient, project: Path) -> None:
    text = "the old film was good"
    found = post(client, "trace", model=BERT, text=text, also=["a film"])
    exact = keel.trace(text, model=project / "models" / "bert", also=["a film"])
    assert [each["shape"] for each in found["tensors"]] == [list(each.shape) for each in exact.tensors]
    decoded = post(client, "trace", model=GPT, text="the old", tokens=2)
    read, first, second = (step["cached"] for step in decoded["steps"])
    assert (read, second) == (0, first + 1)
    assert decoded["notes"] == []
    longest = client.post("/api/trace", json={"model": BERT, "text": "the " * 62})
    assert longest.status_code == 200
    assert len(longest.content) < 4_000_000
    models = {each["id"]: each for each in client.get("/api/models").json()["models"]}
    assert all("trace" in models[name]["can"] for name in (BERT, CLASSIFIER, GPT, WORDS))


def test_a_map_of_words(client: TestClient) -> None:
    found = post(client, "map", model=WORDS, top=50, clusters=2)
    points = np.frombuffer(base64.b64decode(found["points"]), "<u2").reshape(-1, 2)
    assert len(points) == len(found["names"]) > 5
    assert points.max() == 65_535 == max(found["width"], found["height"])
    groups = np.frombuffer(base64.b64decode(found["clusters"]["groups"]), np.uint8)
    assert len(groups) == len(points)
    assert [each["size"] for each in found["clusters"]["clusters"]] == np.bincount(groups).tolist()
    assert post(client, "map", model=WORDS, top=5)["clusters"] is None


def test_clusters_of_a_data_file(client: TestClient) -> None:
    found = post(client, "clusters", model=BERT, file="project/train.tsv", clusters=2, most=20)
    assert found["unit"] == "text"
    assert len(found["names"]) == 20
    assert sum(each["size"] for each in found["clusters"]["clusters"]) == 20
    assert found["clusters"]["clusters"][0]["words"]
    assert any("20 of 32 texts" in note for note in found["notes"])
    assert not any(note.startswith("/") for note in found["notes"])
    pasted = post(client, "clusters", model=BERT, content="the old film\n\na quiet garden\ngood story\n", clusters=3)
    assert len(pasted["clusters"]["clusters"]) == 3


def test_pronouns_and_occupations(client: TestClient) -> None:
    words = {"pronouns": "good:old", "occupations": ["film", "story"], "by": "masked", "language": "en"}
    found = post(client, "bias", model=BERT, **words)
    assert {each["occupation"] for each in found["scores"][0]["occupations"]} == {"film", "story"}
    assert found["caution"] == CAUTION


def test_layers_and_explanations(client: TestClient) -> None:
    (mix,) = post(client, "layers", models=[CLASSIFIER])["tasks"]
    assert sum(mix["weights"]) == pytest.approx(1, abs=1e-4)
    found = post(client, "explain", model=CLASSIFIER, text="the old film was good")
    assert [word["word"] for word in found["words"]] == ["the", "old", "film", "was", "good"]


def test_probes_of_a_file_and_of_pasted_words(client: TestClient, project: Path) -> None:
    tagged = "\n\n".join(f"{name}\tN\nis\tV\ngood\tA" for name in ("film", "story", "garden", "quiet", "old"))
    found = post(client, "probes", model=BERT, content=tagged, control=True, random=True)
    (curve,) = found["tasks"]
    assert (curve["layers"], curve["classes"], curve["test"]) == ([0, 1, 2], 3, 3)
    assert len(curve["scores"]) == len(curve["control"]) == len(curve["random"]) == 3
    assert [note for note in found["notes"] if "layer" in note] == []
    assert "/" not in json.dumps(found["notes"])
    (project / "tags.conll").write_text(tagged.replace("\t", " ") + "\n", encoding="utf-8")
    again = post(client, "probes", model=BERT, train="project/tags.conll", test="project/tags.conll")
    assert again["tasks"][0]["source"] == "project/tags.conll"
    assert again["tasks"][0]["control"] is None
    (project / "tags.conll").unlink()


def test_retrieval_of_translations(client: TestClient, project: Path) -> None:
    pairs = [("the old film", "film old the"), ("a quiet garden", "garden a quiet"), ("good story", "story good")]
    found = post(client, "retrieval", model=BERT, content="\n".join(map("\t".join, pairs)))
    exact = keel.retrieval(project / "models" / "bert", pairs)
    assert [each["forward"]["value"] for each in found["layers"]] == [each.forward.value for each in exact.layers]
    for side, name in enumerate(("first.txt", "second.txt")):
        (project / name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    files = {"file": "project/first.txt", "second_file": "project/second.txt"}
    assert post(client, "retrieval", model=BERT, **files)["count"] == len(pairs)
    for name in ("first.txt", "second.txt"):
        (project / name).unlink()


def test_figures_are_trees_of_shapes_without_styles(client: TestClient) -> None:
    figures = {each["name"]: each for each in client.get("/api/figures").json()["figures"]}
    assert {*figures} == {*FIGURES}
    assert all(("model" in each["options"]) == bool(each["systems"]) for each in figures.values())
    assert "ernie" in figures["units"]["systems"]
    found = post(client, "figure", name="block", model=BERT)
    assert found["numbers"]["layers"] == 2

    def shapes(shape: dict[str, Any]) -> list[dict[str, Any]]:
        inside = [each for each in shape["children"] if not isinstance(each, str)]
        return [shape, *(each for child in inside for each in shapes(child))]

    every = shapes(found["picture"])
    assert every[0]["tag"] == "svg"
    assert {"text", "rect"} <= {each["tag"] for each in every}
    assert not any("style" in each["attributes"] for each in every)
    for system in figures["rnn"]["systems"]:
        assert system not in ("bert", "gpt")


def test_a_figure_reads_no_file_that_a_recipe_names(client: TestClient, project: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("old film\n", encoding="utf-8")
    folder = project / "models" / "named"
    shutil.copytree(project / "models" / "bert", folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["keel"]["card"]["recipe"].setdefault("text", {})["entities"] = str(names)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    text = "the old film was good"
    exact = keel.figure("units", model=folder, text=text).to_dict()["units"]["levels"]
    found = post(client, "figure", name="units", model="project/models/named", text=text)["units"]["levels"]
    assert {*exact} - {*found} == {"entity"}
    shutil.rmtree(folder)


def test_runs_and_reports(client: TestClient) -> None:
    listed = {each["id"]: each for each in client.get("/api/runs").json()["runs"]}
    assert listed[BERT]["complete"]
    found = post(client, "runs", ids=[BERT, GPT])
    assert len(found["runs"]) == 2
    assert found["runs"][0]["curves"]["training loss"]
    assert [run["folder"] for run in found["runs"]] == [BERT, GPT]
    (report,) = client.get("/api/reports").json()["reports"]
    assert report["systems"] == ["onehot"]
    assert post(client, "report", id=report["id"])["cells"][0]["row"] == "onehot"
    page = client.get(f"/reports/{report['id']}")
    assert page.text.startswith("<!DOCTYPE html>")
    assert page.headers["content-security-policy"].startswith("sandbox ")


def test_a_damaged_run_is_listed_with_its_reason(
    client: TestClient, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "FRESH", -1.0)
    folder = project / "models" / "odd"
    shutil.copytree(project / "models" / "gpt", folder)
    try:
        with open(folder / "run" / "log.jsonl", "a", encoding="utf-8") as log:
            log.write('{"event": "step", "step": 9}\n{"event": "note"}\n')
        listed = {each["id"]: each for each in client.get("/api/runs").json()["runs"]}
        assert listed[GPT]["complete"]
        odd = listed["project/models/odd"]
        assert odd["error"].startswith("project/models/odd/run/log.jsonl:")
        assert not odd["complete"]
        answer = client.post("/api/runs", json={"ids": ["project/models/odd"]})
        assert answer.status_code == 400
        assert str(project.parent) not in answer.text
    finally:
        shutil.rmtree(folder)
    assert str(project.parent) not in client.post("/api/runs", json={"ids": [BERT, CLASSIFIER]}).text


def test_data_files(client: TestClient, project: Path) -> None:
    files = {each["id"] for each in client.get("/api/files").json()["files"]}
    assert files == {"project/train.tsv", "project/test.tsv", "project/corpus.txt"}
    checked = post(client, "check", file="project/train.tsv")
    assert "project/train.tsv" in checked["files"]
    pasted = post(client, "check", name="mine.tsv", content="text\tlabel\na\tx\na\tx\n", task="classify")
    assert any("duplicate" in each["cause"] for each in pasted["findings"])
    errors = post(client, "errors", model=CLASSIFIER, file="project/test.tsv")
    assert errors["count"] == 32
    assert "suspects" in errors
    assert all(each["where"].startswith("project/test.tsv:") for each in errors["errors"])
    assert str(project.parent) not in json.dumps([checked, pasted, errors])


def test_a_claim_runs_in_the_background(client: TestClient) -> None:
    numbers = [each["number"] for each in client.get("/api/claims").json()["claims"]]
    assert 41 in numbers
    job = client.post("/api/claims/25").json()["job"]
    end = time.monotonic() + 60
    while (state := client.get(f"/api/jobs/{job}").json())["state"] == "running" and time.monotonic() < end:
        time.sleep(0.1)
    assert state["state"] == "done", state
    assert state["result"]["claim"] == 25
    assert state["result"]["holds"] is True
    assert client.post("/api/claims/999").status_code == 404
    assert client.get("/api/jobs/none").status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("fill", {"model": "nothing", "text": "a [MASK]"}, 404),
        ("fill", {"model": "../../etc", "text": "a [MASK]"}, 404),
        ("fill", {"model": BERT, "text": "no mask"}, 400),
        ("fill", {"model": GPT, "text": "a [MASK]"}, 400),
        ("fill", {"model": BERT}, 422),
        ("fill", {"model": BERT, "text": "x" * 60_000}, 422),
        ("fill", {"model": BERT, "text": "a", "path": "/etc/passwd"}, 422),
        ("predict", {"model": BERT, "text": "a"}, 400),
        ("explain", {"model": BERT, "text": "a"}, 400),
        ("attention", {"model": WORDS, "text": "film"}, 400),
        ("attention/head", {"model": BERT, "text": "film", "layer": 9, "head": 1}, 400),
        ("generate", {"model": GPT, "text": "a", "tokens": 100_000}, 422),
        ("trace", {"model": BERT, "text": "a " * 100}, 400),
        ("trace", {"model": BERT, "text": "a " * 10_000}, 422),
        ("trace", {"model": BERT, "text": "a", "also": ["a"] * 9}, 422),
        ("trace", {"model": GPT, "text": "a", "tokens": 101}, 422),
        ("trace", {"model": BERT, "text": " "}, 400),
        ("analogy", {"model": WORDS, "text": "film good"}, 400),
        ("check", {"file": "../secret.tsv"}, 404),
        ("check", {"name": "../x.tsv", "content": "a"}, 422),
        ("check", {}, 400),
        ("runs", {"ids": ["../run"]}, 404),
        ("map", {"model": WORDS, "top": 60_000}, 422),
        ("map", {"model": WORDS, "top": 5, "clusters": 50}, 400),
        ("map", {"model": "../words"}, 404),
        ("clusters", {"model": BERT, "file": "../secret.tsv"}, 404),
        ("clusters", {"model": BERT, "file": "project/train.tsv", "most": 1_000_000}, 422),
        ("clusters", {"model": BERT, "file": "project/train.tsv", "clusters": 0}, 400),
        ("clusters", {"model": BERT, "file": "project/train.tsv", "text_column": "body"}, 400),
        ("clusters", {"model": BERT, "content": " \n"}, 400),
        ("probes", {"model": BERT}, 400),
        ("probes", {"model": BERT, "train": "../secret.conll"}, 404),
        ("probes", {"model": WORDS, "content": "a N\n"}, 400),
        ("retrieval", {"model": BERT, "content": "a film"}, 400),
        ("retrieval", {"model": BERT, "file": "project/train.tsv", "second_file": "../secret"}, 404),
        ("figure", {"name": "nothing"}, 404),
        ("figure", {"name": "family", "model": BERT}, 400),
        ("figure", {"name": "units", "text": "a", "phrases": "/etc/passwd"}, 422),
        ("bias", {"model": BERT, "pronouns": "she"}, 400),
        ("bias", {"model": BERT, "by": "all"}, 422),
        ("bias", {"model": BERT, "occupations": ["x"] * 201}, 422),
        ("bias", {"model": WORDS}, 400),
        ("report", {"id": "nothing"}, 404),
        ("errors", {"model": BERT, "file": "project/test.tsv"}, 400),
    ],
)
def test_bad_requests_get_one_sentence(client: TestClient, path: str, body: dict[str, Any], status: int) -> None:
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == status
    sentence = answer.json()["error"]
    assert sentence
    assert "\n" not in sentence


def test_nothing_outside_the_folders_is_served(client: TestClient) -> None:
    assert client.get("/api/nothing").status_code == 404
    assert client.get("/reports/%2e%2e/%2e%2e/etc/passwd").status_code == 404
