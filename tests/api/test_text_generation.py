"""Language models as verbs: generation continues a prompt, and a text is evaluated by its perplexity."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, assert_type

import pytest
import torch

import keel
from keel.api.text_generation import continuations
from keel.errors import KeelError, UsageError
from keel.generation.beam_search import BeamSearch
from keel.model import Model
from keel.nn.inference_loop import eval_mode
from keel.systems.capabilities import CausalLM


@pytest.fixture(scope="module")
def ngram(english_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return keel.pretrain("ngram", english_corpus, out=tmp_path_factory.mktemp("language") / "m")


def test_text_is_streamed_as_it_is_sampled(ngram: Model) -> None:
    parts: list[str] = []
    text = assert_type(keel.generate("The sailor", model=ngram, tokens=30, seed=1, on_text=parts.append), str)
    assert "".join(parts) == text
    assert 20 < len(parts) <= 30
    assert text.startswith(" ")
    assert "[" not in text
    assert "." in text[:-1], "it goes on after a sentence"
    assert text == keel.generate("The sailor", model=ngram, tokens=30, seed=1)
    assert text != keel.generate("The sailor", model=ngram, tokens=30, seed=2)
    likely = [keel.generate("The sailor", model=ngram, tokens=9, temperature=0, seed=seed) for seed in (1, 2)]
    assert likely[0] == likely[1]
    assert keel.generate(model=ngram, tokens=3)


def test_several_prompts_are_written_in_one_batch(ngram: Model) -> None:
    prompts = ["The sailor", "", "The old sailor", "The judge"]
    texts = assert_type(keel.generate(prompts, model=ngram, tokens=9, seed=4), list[str])
    for number, prompt in enumerate(prompts):
        assert texts[number] == keel.generate(prompt, model=ngram, tokens=9, seed=4 + number)
    assert len(set(texts)) == 4


def test_a_text_ends_before_a_stop_string(ngram: Model) -> None:
    whole = keel.generate("The sailor", model=ngram, tokens=40, seed=1)
    for stop in (".", whole[20:29], whole[-6:]):
        parts: list[str] = []
        text = keel.generate("The sailor", model=ngram, tokens=40, seed=1, stop=["qwertz", stop], on_text=parts.append)
        assert text == whole[: whole.index(stop)]
        assert "".join(parts) == text, "nothing is shown that is then taken back"
    long = keel.generate("The sailor", model=ngram, tokens=400, seed=1)
    assert long.startswith(whole)
    assert long.split() == long.strip().split(" "), "no word of a long text is cut or doubled"
    almost = whole[-4:] + "!"
    assert keel.generate("The sailor", model=ngram, tokens=40, seed=1, stop=almost) == whole, "what was held is given"
    (one, other) = keel.generate(["The sailor"] * 2, model=ngram, tokens=40, seed=1, stop=[whole[20:29]])
    assert one == whole[:20]
    assert len(other.split()) > 10, "the other text continues"
    with pytest.raises(UsageError, match="stop is empty"):
        keel.generate("The sailor", model=ngram, stop=[""])


def test_beam_search_finds_a_more_probable_text_than_greedy_decoding(ngram: Model) -> None:
    prompts = ["The sailor", "The judge", "A"]
    best = continuations(prompts, model=ngram, strategy=BeamSearch(beams=6, best=4, length_penalty=0), tokens=25)
    greedy = continuations(prompts, model=ngram, strategy=BeamSearch(beams=1, length_penalty=0), tokens=25)
    for found, (one,) in zip(best, greedy, strict=True):
        assert found[0].score is not None
        assert one.score is not None
        assert found[0].score >= one.score - 1e-5
        assert len({each.text for each in found}) == 4
    assert any(found[0].text != one.text for found, (one,) in zip(best, greedy, strict=True))
    assert keel.generate("The judge", model=ngram, beams=1, tokens=25) == greedy[1][0].text
    with pytest.raises(UsageError, match="beam search does not sample"):
        keel.generate("The judge", model=ngram, beams=2, top_k=3)
    listed = keel.generate(prompts, model=ngram, beams=6, best=4, length_penalty=0, tokens=25)
    assert listed == [[each.text for each in found] for found in best]
    assert_type(listed, list[list[str]])
    best = keel.generate("A", model=ngram, beams=6, best=4, length_penalty=0, tokens=25)
    assert assert_type(best, list[str]) == listed[2]
    with pytest.raises(UsageError, match="best is a setting of beam search"):
        keel.generate("The judge", model=ngram, best=2)
    with pytest.raises(UsageError, match="length_penalty is a setting of beam search"):
        keel.generate("The judge", model=ngram, length_penalty=0.6)
    with pytest.raises(UsageError, match="beams must be 1 or more and 1,000 or less, not 5000"):
        keel.generate("The judge", model=ngram, beams=5000)
    nothing: Any = None
    for prompt in (nothing, ["The judge", nothing]):
        with pytest.raises(UsageError, match=r"None.* text: give a string"):
            keel.generate(prompt, model=ngram)


def test_a_search_ends_its_texts_before_a_stop_string(ngram: Model) -> None:
    traces: list[dict[str, Any]] = []
    prompts, strategy = ["The sailor", "The judge"], BeamSearch(beams=8, best=4)
    whole = continuations(prompts, model=ngram, strategy=strategy, tokens=20)
    for stop in ([" the"], [".", " a"], ["qwertz"]):
        settings: dict[str, Any] = {"tokens": 20, "stop": stop, "on_trace": traces.append}
        found = continuations(prompts, model=ngram, strategy=strategy, **settings)
        for best in found:
            assert len({each.text for each in best}) == 4, "no text is given twice"
            assert not any(end in each.text for end in stop for each in best)
            scores = [each.score or 0.0 for each in best]
            assert scores == sorted(scores, reverse=True)
            for each in best:  # none carries what was written after the string
                assert each.score is not None
                assert each.log_probability is not None
                size = 6 * (each.log_probability / each.score) ** (1 / 0.6) - 5
                words = len(re.findall(r"\w+|[^\w\s]", each.text))
                assert size == pytest.approx(words + 1, abs=0.1)
        assert any(each.stopped for best in found for each in best) == ("qwertz" not in stop)
    assert [[each.text for each in best] for best in found] == [[each.text for each in best] for best in whole]
    assert len(traces) == 3


def test_what_repeats_is_made_less_likely(ngram: Model) -> None:
    plain = keel.generate("The sailor", model=ngram, tokens=40, temperature=0).split()
    fresh = keel.generate("The sailor", model=ngram, tokens=40, temperature=0, repetition_penalty=5.0).split()
    assert len(set(fresh)) > len(set(plain))


def test_a_prompt_longer_than_the_context_gets_a_note(ngram: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram.objective, "max_context", 6, raising=False)
    with pytest.raises(KeelError, match=r"a prompt of 8 tokens does not fit into .* of 6 tokens .*: shorten it"):
        keel.generate("the sailor " * 4, model=ngram)
    messages: list[str] = []
    text = keel.generate("The sailor", model=ngram, tokens=9, on_event=lambda event: messages.append(event["text"]))
    assert messages == ["the context window has room for 4 of 9 tokens after this prompt"]
    assert len(text.split()) <= 4


@pytest.mark.parametrize("settings", [{"beams": 3}, {"seed": 3}, {"temperature": 0}])
def test_a_trace_records_how_each_word_was_chosen(ngram: Model, tmp_path: Path, settings: dict[str, Any]) -> None:
    texts = keel.generate(["The sailor", "A"], model=ngram, tokens=12, trace=tmp_path / "deep" / "trace", **settings)
    found = json.loads((tmp_path / "deep" / "trace" / "trace.json").read_text(encoding="utf-8"))
    page = (tmp_path / "deep" / "trace" / "trace.html").read_text(encoding="utf-8")
    assert "://" not in page, "it needs nothing else"
    for text, recorded in zip(texts, found["texts"], strict=True):
        words = [recorded["hypotheses"][number]["token"] for number in recorded["path"]]
        assert "".join(text.split()) == "".join(word for word in words if not word.startswith("["))
        assert recorded["answers"][0]["text"] == text
        assert text.strip() in page
        probabilities = [recorded["hypotheses"][number]["probability"] for number in recorded["path"]]
        assert all(0 < chance <= 1.0001 for chance in probabilities)
    assert {node["outcome"] for text in found["texts"] for node in text["hypotheses"]} >= {"kept", "dropped"}
    assert sum(step["computed"] for step in found["steps"]) > 12
    keel.generate("A", model=ngram, tokens=3, trace=tmp_path / "one.json", **settings)
    keel.generate("A", model=ngram, tokens=3, trace=tmp_path / "one.html", **settings)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "one.html", "one.json"]
    for wrong, why in (("x.png", "must end in .html or .json"), ("nope/x.html", "there is no folder")):
        with pytest.raises(UsageError, match=why):
            keel.generate("A", model=ngram, tokens=3, trace=tmp_path / wrong, **settings)
    assert len([*tmp_path.iterdir()]) == 3
    messages: list[str] = []
    keel.generate(
        "A", model=ngram, tokens=3, trace=tmp_path / "one.html", on_event=lambda e: messages.append(e["text"])
    )
    assert messages == [f"trace: {tmp_path / 'one.html'}"]
    (tmp_path / "file").write_text("")
    with pytest.raises(KeelError, match="cannot be written"):
        keel.generate("A", model=ngram, tokens=3, trace=tmp_path / "file" / "x", **settings)


TINY: dict[str, dict[str, Any]] = {
    "ngram": {"order": 3},
    "nnlm": {"width": 8, "hidden": 8, "order": 3, "chunk_length": 5, "steps": 4, "vocabulary": 60},
    "rnn": {"width": 8, "bidirectional": True, "bptt": 8, "batch": 8, "steps": 4, "vocabulary": 60},
    "ulmfit": {"width": 8, "hidden_size": 12, "bptt": 8, "batch": 8, "steps": 4, "vocabulary": 60},
}
GPT: dict[str, Any] = {
    "layers": 1,
    "width": 32,
    "head_dim": 16,
    "max_positions": 32,
    "sequence_length": 32,
    "vocabulary": 300,
}
GPT |= {"steps": 4, "batch": 4}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def tiny(name: str, corpus: Path, out: Path, device: str) -> Model:
    return keel.pretrain(name, corpus, out=out, device=device, **(GPT if name == "gpt" else TINY[name]))


@pytest.fixture(scope="module", params=TINY)
def model(request: pytest.FixtureRequest, english_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny(request.param, english_corpus, tmp_path_factory.mktemp("writer") / "m", "cpu")


def test_every_language_model_writes(model: Model) -> None:
    text = keel.generate("The sailor", model=model, tokens=12, seed=3)
    assert len(text.split()) > 3
    assert text == keel.generate("The sailor", model=model, tokens=12, seed=3)
    assert text != keel.generate("The sailor", model=model, tokens=12, seed=4)
    one, other = keel.generate(["The sailor", "A boat of"], model=model, tokens=6, beams=3)
    assert one == keel.generate("The sailor", model=model, tokens=6, beams=3)
    assert other == keel.generate("A boat of", model=model, tokens=6, beams=3)


def test_state_continues_from_any_rows(model: Model) -> None:
    generator = model.objective
    assert isinstance(generator, CausalLM)
    read = [model.tokenizer.encode(text).ids for text in ("a heavy", "a small", "boat")]
    ids = torch.tensor([[generator.bos_id, *part[-2:]] for part in read[:2]])
    order, further = torch.tensor([1, 0, 1]), torch.tensor([read[2][:1]] * 3)
    with torch.no_grad(), eval_mode(generator):
        _, state = generator.step(ids, generator.new_state(2))
        found, _ = generator.step(further, state.index_select(order))
        whole, _ = generator.step(torch.cat([ids[order], further], 1), generator.new_state(3))
    torch.testing.assert_close(found, whole)
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


@pytest.mark.gpu
@pytest.mark.parametrize("name", TINY)
def test_a_model_on_a_gpu_writes(name: str, english_corpus: Path, tmp_path: Path) -> None:
    tiny(name, english_corpus, tmp_path / "m", "cpu")
    scores: list[torch.Tensor] = []
    for device in ("cpu", "cuda"):
        model = Model.load(tmp_path / "m", device=device)
        assert keel.generate("The sailor", model=model, tokens=8)
        generator = model.objective
        assert isinstance(generator, CausalLM)
        with torch.no_grad():
            scores.append(generator.step(torch.tensor([[generator.bos_id, 7]]), generator.new_state(1))[0].cpu())
    torch.testing.assert_close(scores[0], scores[1], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [*TINY, "gpt"])
def test_a_seed_gives_the_same_text_on_every_device(
    name: str, device: str, english_corpus: Path, tmp_path: Path
) -> None:
    tiny(name, english_corpus, tmp_path / "m", "cpu")
    strategy: dict[str, Any] = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.3, "tokens": 12}
    texts = [
        keel.generate(
            ["The sailor", "A boat of"], model=Model.load(tmp_path / "m", device=device), seed=seed, **strategy
        )
        for seed in (3, 3, 4)
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("device", DEVICES)
def test_a_gpt_finds_the_same_texts_on_every_device(device: str, english_corpus: Path, tmp_path: Path) -> None:
    model = tiny("gpt", english_corpus, tmp_path / "m", "cpu")
    torch.manual_seed(0)
    with torch.no_grad():  # so far apart that no rounding changes which is more probable
        for parameter in model.encoder.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.5)
    model.save(tmp_path / "wide")
    prompts = ["The sailor", "A boat of"]
    found = [
        continuations(
            prompts, model=Model.load(tmp_path / "wide", device=place), strategy=BeamSearch(beams=3, best=3), tokens=8
        )
        for place in ("cpu", device)
    ]
    for here, there in zip(*found, strict=True):
        assert [each.text for each in there] == [each.text for each in here]
        scores = [[each.score or 0.0 for each in texts] for texts in (there, here)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-3)
        assert min(one - other for one, other in pairwise(scores[1])) > 1e-2


@pytest.mark.parametrize("name", ["ngram", "rnn"])
def test_chinese_has_no_spaces_between_words(name: str, chinese_corpus: Path, tmp_path: Path) -> None:
    model = keel.pretrain(name, chinese_corpus, out=tmp_path / "m", device="cpu", **{**TINY[name], "vocabulary": 1200})  # pyright: ignore[reportArgumentType]
    parts: list[str] = []
    text = keel.generate("水手", model=model, tokens=30, on_text=parts.append)
    assert "".join(parts) == text
    assert len(text) > 25
    assert not re.search("[一-龥] | [一-龥]", text), "numbers and letters of an untaught network have blanks between"


def test_no_special_token_is_sampled_except_eos(model: Model) -> None:
    generator, special = model.objective, model.tokenizer.special_ids
    assert isinstance(generator, CausalLM)
    likely = generator.step

    def eager(ids: torch.Tensor, state: Any, record: Any = None) -> Any:
        scores, after = likely(ids, state)
        scores = scores.clone()
        scores[:, [number for number in special if number != generator.eos_id]] = 100.0
        return scores, after

    parts: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator, "step", eager)
        keel.generate("The sailor", model=model, tokens=12, on_text=parts.append)
    assert sum(map(bool, parts)) > 6


def test_invalid_generation_is_refused(ngram: Model, english_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(KeelError, match="all words of 'Qwertz uiop' are unknown to the model"):
        keel.generate("Qwertz uiop", model=ngram)
    messages: list[str] = []
    keel.generate("The qwertz", model=ngram, tokens=2, on_event=lambda event: messages.append(event["text"]))
    assert messages == ["1 of 2 words of the prompt are unknown to the model"]
    words = keel.pretrain("onehot", english_corpus, out=tmp_path / "w")
    with pytest.raises(KeelError, match=r"onehot does not generate text: .* such as ngram, nnlm, rnn, ulmfit or gpt"):
        keel.generate("The", model=words)
    with pytest.raises(UsageError, match="onehot is not a causal language model"):
        keel.perplexity(words, english_corpus)


def test_evaluate_gives_the_perplexity_of_a_text(ngram: Model, english_corpus: Path, tmp_path: Path) -> None:
    found = keel.perplexity(ngram, english_corpus)
    assert keel.evaluate(ngram, english_corpus, out=tmp_path) == found
    assert (tmp_path / "scores.json").is_file()
    (tmp_path / "table.csv").write_text("body,n\nThe sailor paints the boat.,1\n")
    assert keel.evaluate(ngram, tmp_path / "table.csv", text_column="body").count == 7
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(KeelError, match=rf"^{tmp_path}/empty\.txt holds no text"):
        keel.evaluate(ngram, tmp_path / "empty.txt")


def test_sentences_are_split_as_in_pretraining(tmp_path: Path) -> None:
    text = tmp_path / "lines.txt"
    text.write_text("The sailor came home . He slept .\nThe judge went home . She slept .\n\n" * 40, encoding="utf-8")
    model = keel.pretrain("ngram", text, out=tmp_path / "m", sentences="lines", held_out=0.0)
    found = keel.evaluate(model, text)
    assert str(found) == str(keel.perplexity(model, text, sentences="lines"))
    assert str(found) != str(keel.perplexity(model, text, sentences="split"))
