"""A corpus of several languages: names, shares, tokens and sampling."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keel.data import token_store as module
from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.language_mix import repeats_per_epoch, smoothed_shares, sources_by_language, split_language
from keel.data.language_sampling import documents_by_language, mix_languages
from keel.data.mlm_sampling import sample_pairs
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.training.counter_rng import CounterRng

GERMAN = "\n\n".join(f"Der Bauer {number} wohnt im Tal. Er sieht das Feld." for number in range(60))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, english_corpus: Path, chinese_corpus: Path) -> dict[str, Path]:
    german = tmp_path_factory.mktemp("languages") / "german.txt"
    german.write_text(GERMAN, encoding="utf-8")
    return {"en": english_corpus, "de": german, "zh": chinese_corpus}


@pytest.fixture(scope="module")
def tokenizer(files: dict[str, Path]) -> Tokenizer:
    return Tokenizer.train(Corpus(files), size=900)


@pytest.fixture(scope="module")
def tokens(files: dict[str, Path], tokenizer: Tokenizer) -> Tokens:
    return Tokens.build(Corpus(files), tokenizer, words=True)


@pytest.mark.parametrize(
    ("name", "language", "file"),
    [
        ("de:multi_de.txt.xz", "de", "multi_de.txt.xz"),
        ("zh-Hant:a/*.txt", "zh-Hant", "a/*.txt"),
        ("yue:C:\\x.txt", "yue", "C:\\x.txt"),
        ("C:\\x.txt", "", "C:\\x.txt"),
        ("c:x.txt", "", "c:x.txt"),
        ("/data/de:x.txt", "", "/data/de:x.txt"),
        ("./de:x.txt", "", "./de:x.txt"),
        ("https://x.org/a.txt", "", "https://x.org/a.txt"),
        ("DE:x.txt", "", "DE:x.txt"),
        ("de:", "", "de:"),
        ("-", "", "-"),
        ("de:-", "de", "-"),
    ],
)
def test_the_language_before_a_file(name: str, language: str, file: str) -> None:
    assert split_language(name) == (language, file)


def test_an_existing_file_has_no_language_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("de:x.txt").write_text("text", encoding="utf-8")
    assert split_language("de:x.txt") == ("", "de:x.txt")
    assert not Corpus("de:x.txt").languages


def test_languages_are_in_a_dict_or_in_names() -> None:
    assert sources_by_language({"de": "a.txt", "en": ["one text"]}) == {"de": "a.txt", "en": ["one text"]}
    assert sources_by_language([Path("de:a"), Path("en:b"), Path("de:c")]) == {
        "de": [Path("a"), Path("c")], "en": [Path("b")],
    }  # fmt: skip
    assert sources_by_language("de:a.txt") == {"de": [Path("a.txt")]}
    for texts in (["de:a text"], [("de", "a")], {"text": ["a"]}, {"id": ["1"], "text": ["a"]}, {}, "a.txt"):
        assert sources_by_language(texts) == {}
    assert sources_by_language({"id": ["1"], "txt": ["a"]}, "txt") == {}
    with pytest.raises(UsageError, match=r"b\.txt has no language before it, and other files have: write all files as"):
        sources_by_language([Path("de:a.txt"), Path("b.txt")])


def test_a_name_that_is_no_code_before_a_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "b.txt"
    path.write_text("text", encoding="utf-8")
    for code in ("German", "DE", "d"):
        with pytest.raises(UsageError, match=rf"b\.txt: '{code}' is no language code: write two or three lowercase"):
            sources_by_language([Path("en:a.txt"), Path(f"{code}:{path}")])


def test_shares_and_repeats_are_those_of_the_formula() -> None:
    sizes = [1000, 100, 10]
    assert smoothed_shares(sizes, 0.7) == pytest.approx(np.array(sizes) ** 0.7 / sum(size**0.7 for size in sizes))
    assert smoothed_shares(sizes, 1) == pytest.approx([0.9009, 0.0901, 0.009], abs=1e-4)
    assert repeats_per_epoch(sizes, 1) == pytest.approx([1, 1, 1])
    assert repeats_per_epoch(sizes, 0) == pytest.approx([1, 10, 100])
    repeats = repeats_per_epoch(sizes, 0.7)
    assert repeats[0] == 1
    assert repeats * sizes / (repeats * sizes).sum() == pytest.approx(smoothed_shares(sizes, 0.7))


def test_a_corpus_reads_its_languages_one_after_the_other(files: dict[str, Path]) -> None:
    corpus = Corpus(files)
    separate = [document for path in files.values() for document in Corpus(path).documents()]
    assert list(corpus.documents()) == separate
    assert corpus.files == list(files.values())
    assert str(corpus) == "en (english.txt), de (german.txt), zh (chinese.txt)"
    named = Corpus([Path(f"{language}:{path}") for language, path in files.items()])
    assert named.fingerprint() == corpus.fingerprint()
    assert list(Corpus({"de": ["ein Text", "noch einer"]}).documents()) == ["ein Text", "noch einer"]


def test_names_and_files_are_part_of_the_fingerprint(files: dict[str, Path]) -> None:
    prints = [
        Corpus(files).fingerprint(),
        Corpus({**files, "de": files["en"]}).fingerprint(),
        Corpus(dict(zip(("fr", "de", "zh"), files.values(), strict=True))).fingerprint(),
        Corpus({**files, "de": GERMAN.split("\n\n")}).fingerprint(),
        Corpus(list(files.values())).fingerprint(),
    ]
    assert len(set(prints)) == len(prints)


def test_deduplication_and_errors_name_the_language_of_a_text(files: dict[str, Path], tmp_path: Path) -> None:
    twice = Corpus({"de": ["gleich", "gleich"], "en": ["gleich"]}, dedup="documents")
    assert list(twice.documents()) == ["gleich", "gleich"]  # once in each
    with pytest.raises(KeelError, match=r"there is no file missing\.txt"):
        Corpus({"de": "missing.txt"})
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(KeelError, match=r"de: .*empty.txt holds no text"):
        Tokenizer.train(Corpus({**files, "de": tmp_path / "empty.txt"}), size=300)


def test_tokens_know_the_documents_and_bytes_of_each_language(
    tokens: Tokens, tokenizer: Tokenizer, files: dict[str, Path]
) -> None:
    alone = {language: Tokens.build(Corpus(path), tokenizer, words=True) for language, path in files.items()}
    assert {language: found["documents"] for language, found in tokens.languages.items()} == {
        language: len(each.documents) - 1 for language, each in alone.items()
    }
    assert tokens.languages["de"]["bytes"] == pytest.approx(len(GERMAN.encode()), rel=0.05)
    assert np.array_equal(tokens.ids, np.concatenate([each.ids for each in alone.values()]))
    assert all("languages" not in each.index for each in alone.values())
    parts = documents_by_language(tokens)
    assert {language: each.size for language, each in parts.items()} == {
        language: Documents.of(each).size for language, each in alone.items()
    }


def test_an_interrupted_build_counts_each_document_once(
    files: dict[str, Path], tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 3000)
    monkeypatch.setattr(module, "COMMIT_SECONDS", 0.0)
    whole = Tokens.build(Corpus(files), tokenizer, tmp_path / "whole", workers=1)
    encode = module.encode_chunks

    def interrupted(*arguments: Any, **settings: Any) -> Iterator[Any]:
        for number, encoded in enumerate(encode(*arguments, **settings)):
            if number == 12:
                raise KeyboardInterrupt
            yield encoded

    with monkeypatch.context() as patch:
        patch.setattr(module, "encode_chunks", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Tokens.build(Corpus(files), tokenizer, tmp_path / "parts", workers=1)
    resumed = Tokens.build(Corpus(files), tokenizer, tmp_path / "parts", workers=1)
    assert resumed.languages == whole.languages
    assert np.array_equal(resumed.ids, whole.ids)


def language_sizes(mixed: Documents, tokens: Tokens) -> dict[str, int]:
    """Tokens of each language in an epoch."""
    ends = np.cumsum([found["documents"] for found in tokens.languages.values()])
    last = {language: int(tokens.documents[end]) for language, end in zip(tokens.languages, ends, strict=True)}
    sizes = dict.fromkeys(last, 0)
    for first, end in mixed.spans.tolist():
        language = next(name for name, bound in last.items() if first < bound)
        sizes[language] += int(mixed.starts[end] - mixed.starts[first])
    return sizes


@pytest.mark.parametrize("smoothing", [0.0, 0.3, 0.7, 1.0])
def test_an_epoch_has_the_repeats_of_each_language(tokens: Tokens, smoothing: float) -> None:
    parts = documents_by_language(tokens)
    sizes = [found["bytes"] for found in tokens.languages.values()]
    mixed = mix_languages(parts, sizes, smoothing, seed=0)
    wanted = repeats_per_epoch(sizes, smoothing) * [each.size for each in parts.values()]
    assert list(language_sizes(mixed, tokens).values()) == pytest.approx(wanted.tolist(), abs=30)
    assert mixed.size == sum(language_sizes(mixed, tokens).values())
    again, other = (mix_languages(parts, sizes, smoothing, seed=seed) for seed in (0, 1))
    assert torch.equal(mixed.spans, again.spans)
    assert smoothing == 1.0 or not torch.equal(mixed.spans, other.spans)


def test_every_document_is_read_in_an_epoch(tokens: Tokens) -> None:
    parts = documents_by_language(tokens)
    mixed = mix_languages(parts, [found["bytes"] for found in tokens.languages.values()], 0.7, seed=0)
    documents = {tuple(span) for each in parts.values() for span in each.spans.tolist()}
    assert documents <= {tuple(span) for span in mixed.spans.tolist()}


def test_both_texts_of_a_pair_are_in_one_language(tokens: Tokens) -> None:
    parts = documents_by_language(tokens)
    mixed = mix_languages(parts, [found["bytes"] for found in tokens.languages.values()], 0.5, seed=0)
    ends = torch.tensor([tokens.starts[tokens.documents[end]] for end in
                         np.cumsum([found["documents"] for found in tokens.languages.values()])])  # fmt: skip
    rng = CounterRng(seed=0, step=0, first_example=0)
    spans = sample_pairs(mixed, rng, torch.arange(2000), 40, "nsp")
    first, second = (torch.searchsorted(ends, start, right=True) for start in (spans.first, spans.second))
    assert spans.not_next is not None
    assert 900 < int(spans.not_next.sum()) < 1100
    assert torch.equal(first, second)
    assert set(first.tolist()) == {0, 1, 2}


def test_a_vocabulary_is_shared_cased_and_sampled_by_smoothed_size(files: dict[str, Path]) -> None:
    events: list[dict[str, Any]] = []
    corpus = Corpus({"en": files["en"], "de": files["de"]})
    shared = Tokenizer.train(corpus, size=120, language_smoothing=0, on_event=events.append)
    assert not shared.lowercase
    assert "en 50.0%, de 50.0%" in events[0]["text"]
    assert "cased" in events[1]["text"]
    by_size = Tokenizer.train(corpus, size=120, language_smoothing=1)
    german = GERMAN.split("\n\n")[:20]
    counts = [sum(map(len, each.encode_many(german))) for each in (shared, by_size)]
    assert counts[0] < counts[1]
    assert Tokenizer.train(corpus, size=120, language_smoothing=0).fingerprint() == shared.fingerprint()
    sampled = Tokenizer.train(corpus, size=120, language_smoothing=0, sample=4000, on_event=events.append)
    assert len(sampled) <= 120
    assert Tokenizer.train(corpus, size=400, lowercase=True).lowercase


def test_chinese_and_japanese_characters_are_split_as_in_bert() -> None:
    texts = ["住在山谷里的农夫没有看见他们", "谷に住む農夫は誰も見なかった", "골짜기에 사는 농부는 그들을 보지 못했다"]
    shared = Tokenizer.train(Corpus({"zh": [texts[0]] * 9, "ja": [texts[1]] * 9, "ko": [texts[2]] * 9}), size=400)
    tokens = [[shared.token_of(number) for number in shared.encode(text).ids] for text in texts]
    assert tokens[0] == list(texts[0])
    assert {"谷", "住", "農", "夫"} <= set(tokens[1])
    assert "골짜기에" in "".join(tokens[2]).replace("##", "")
    assert all(shared.unknown_id not in shared.encode(text).ids for text in texts)


def test_words_of_japanese_are_not_those_of_jieba(files: dict[str, Path]) -> None:
    events: list[dict[str, Any]] = []
    japanese = Tokenizer.train(Corpus.of(["谷に住む農夫は誰も見なかった。"] * 9), kind="words", min_count=1,
                               on_event=events.append)  # fmt: skip
    assert "Japanese" in events[0]["text"]
    assert not japanese.extra_rules.get("chinese_words")


def test_standard_input_is_one_of_the_languages(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.write(write, b"Ein Satz aus der Eingabe.\n")
    os.close(write)
    with os.fdopen(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        corpus = Corpus([Path("de:-"), Path(f"en:{files['en']}")])
    assert next(corpus.documents()) == "Ein Satz aus der Eingabe."
    assert corpus.stable_files == [files["en"]]
