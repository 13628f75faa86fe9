"""GPT-2's folders: those of transformers give the same numbers here, and ours there."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import keel
from keel.data.corpus import Corpus
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.model import Model
from keel.systems.gpt import Gpt, GptPretraining

SMALL = {"n_embd": 24, "n_layer": 3, "n_head": 2, "n_positions": 40, "initializer_range": 0.2}
TEXTS = ["The sailor's ship sails.\nIt's 12 o'clock, isn't it?", "Æther  and\tblanks", "a judge judges judges"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(Corpus.of(TEXTS * 3), kind="bpe", size=320)


def published(folder: Path, tokenizer: Tokenizer, kind: str = "GPT2LMHeadModel", **settings: Any) -> Any:
    """A model of transformers with random weights, saved with a vocabulary as GPT-2's own is."""
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=len(tokenizer), **SMALL | settings)
    model = getattr(transformers, kind)(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=float("ln_" in name and "weight" in name), std=0.3)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    return model


def scores(model: Model, ids: torch.Tensor) -> torch.Tensor:
    top = model.encoder(TokenBatch(ids=ids, lengths=torch.full((len(ids),), ids.shape[1]))).top
    return top @ model.encoder.words.weight.T  # pyright: ignore[reportAttributeAccessIssue]


@torch.no_grad()
@pytest.mark.parametrize("settings", [{}, {"n_inner": 40, "activation_function": "relu"}])
def test_theirs_gives_equal_numbers_here_and_after_saving_there(
    tmp_path: Path, tokenizer: Tokenizer, settings: dict[str, Any]
) -> None:
    theirs = published(tmp_path / "theirs", tokenizer, **settings)
    ids = torch.randint(len(tokenizer), (3, 17))
    model = Model.load(tmp_path / "theirs")
    assert isinstance(model.objective, GptPretraining)
    torch.testing.assert_close(scores(model, ids), theirs(ids).logits, atol=1e-5, rtol=0)
    model.save(tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert isinstance(again, transformers.GPT2LMHeadModel)
    torch.testing.assert_close(again(ids).logits, theirs(ids).logits)


def test_ours_gives_equal_numbers_and_greedy_text_there(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "layers": 2,
        "width": 32,
        "head_dim": 16,
        "max_positions": 48,
        "sequence_length": 24,
        "threads": 1,
    }
    keel.pretrain(
        "gpt", TEXTS * 5, out=tmp_path / "m", steps=30, batch=8, lr=1e-2, vocabulary=320, device="cpu", **settings
    )
    model = Model.load(tmp_path / "m")
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    words: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    for text in TEXTS:
        assert words(text, add_special_tokens=False)["input_ids"] == model.tokenizer.encode(text).ids
    ids = torch.tensor([[model.tokenizer.end_id, *model.tokenizer.encode("The sailor").ids]])
    torch.testing.assert_close(theirs(ids).logits, scores(model, ids), atol=1e-5, rtol=0)
    assert theirs.config.eos_token_id == model.tokenizer.end_id
    written = theirs.generate(ids, max_new_tokens=20, do_sample=False, attention_mask=torch.ones_like(ids))
    ours = keel.generate("The sailor", model=tmp_path / "m", temperature=0, tokens=20)
    assert words.decode(written[0, ids.shape[1] :], skip_special_tokens=True) == ours


def test_tokenizer_files_of_gpt2_give_the_same_tokens(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    again = Tokenizer.load(tmp_path)  # vocab.json and merges.txt
    assert [again.encode(text).ids for text in TEXTS] == [tokenizer.encode(text).ids for text in TEXTS]
    assert again.end_id == tokenizer.end_id


@torch.no_grad()
def test_a_body_alone_and_a_head_of_another_task_are_read(tmp_path: Path, tokenizer: Tokenizer) -> None:
    ids = torch.randint(len(tokenizer), (2, 9))
    theirs = published(tmp_path / "bare", tokenizer, "GPT2Model")
    torch.testing.assert_close(
        Model.load(tmp_path / "bare").encoder(TokenBatch(ids=ids, lengths=torch.tensor([9, 9]))).top,
        theirs(ids).last_hidden_state,
        atol=1e-5,
        rtol=0,
    )
    published(tmp_path / "classes", tokenizer, "GPT2ForSequenceClassification", pad_token_id=0)
    notes: list[str] = []
    model = Model.load(tmp_path / "classes", on_event=lambda event: notes.append(event["text"]))
    assert model.task is None
    assert "score.weight" in notes[0]


def test_a_classifier_is_kept_beside_what_transformers_reads(tmp_path: Path, tokenizer: Tokenizer) -> None:
    published(tmp_path / "theirs", tokenizer)
    examples = [("a sailor", "who"), ("a ship", "what")] * 4
    tuned = keel.finetune(tmp_path / "theirs", examples, dev=None, epochs=2, batch=4, device="cpu")
    tuned.save(tmp_path / "tuned")
    again = Model.load(tmp_path / "tuned")
    assert again.predict("a sailor") == tuned.predict("a sailor")
    theirs: Any = transformers.GPT2Model.from_pretrained(tmp_path / "tuned").eval()
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(
        theirs(ids).last_hidden_state,
        again.encoder(TokenBatch(ids=ids, lengths=torch.tensor([3]))).top,
        atol=1e-5,
        rtol=0,
    )


@pytest.mark.parametrize("settings", [{"sink": True}, {"pre_norm": False}])
def test_what_gpt2_does_not_have_is_not_called_gpt2(
    tmp_path: Path, tokenizer: Tokenizer, settings: dict[str, Any]
) -> None:
    system = Gpt(layers=1, width=32, head_dim=16, max_positions=16, sequence_length=16, **settings)
    encoder = system.build_encoder(len(tokenizer))
    objective = system.build_objective(encoder, tokenizer)
    model = Model(system=system, encoder=encoder, tokenizer=tokenizer, objective=objective)
    model.save(tmp_path / "m")
    assert json.loads((tmp_path / "m/config.json").read_text())["model_type"] == "gpt"
    again = Model.load(tmp_path / "m")
    assert again.system == system
    assert again.fingerprint() == model.fingerprint()
    assert isinstance(again.objective, GptPretraining)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"n_head": 7}, "not a multiple"),
        ({"n_positions": "many"}, "n_positions"),
        ({"activation_function": "mish"}, "mish"),
        ({"n_embd": 48}, "different models"),
    ],
)
def test_what_cannot_be_held_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, change: dict[str, Any], message: str
) -> None:
    published(tmp_path, tokenizer)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(KeelError, match=message):
        Model.load(tmp_path)
