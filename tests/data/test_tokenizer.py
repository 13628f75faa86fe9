import json
import pickle
import random
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, BertTokenizer, GPT2Tokenizer

from keel.data.corpus import Corpus
from keel.data.encoding_cache import WordCache
from keel.data.text_files import open_text
from keel.data.tokenizer import Tokenizer
from keel.data.tokenizer_training import TokenizerSettings, fitted_vocab_size, train_tokenizer
from keel.errors import KeelError

KINDS = ["wordpiece", "bpe", "words", "characters"]

HOSTILE = [
    "",
    " ",
    " \t leading,  double  and trailing \n",
    "[MASK][CLS]x[SEP] [mask] [ MASK ] a[UNK]b <|endoftext|>x<|endoftext|> <|endoftext|>",
    "##ing ## #hash ##",
    "a\x0cb a\x0bb a\x1cb a\x85b a\u2028b a\u3000b a\xa0b a\u200bb a\u00adb a\ufeffb a\x00b a\x7fb",
    "don't won't 'tis 'S 's  's ''s I'LL we'll\u2019ve",
    "Ångström a\u030angstro\u0308m \u0301start mid\u0301 \u0301 中\u0301文 İstanbul ẞ ſ ﬁ ΑΣ ΣΑΣ. Ǆ",
    "😀👩‍👩‍👧‍👦🇩🇪👍🏽 text😀text ☺️",
    "שלום עולם مرحبا بالعالم \u202eabc\u202c हिन्दी ไทย 한국어 にほんご カタカナ",
    "数学，是利用符号语言。“研究”数量、结构……（Mathematics）二〇〇八年３月 豈﨑 𠀀𪜀 ㍿ ㊗",
    "x" * 10_000,
    "数" * 10_000,
    "ab12" * 2500 + " " + "." * 10_000,
    "lone \ud800 surrogate \udfff and pair \ud83d\ude00",
    "\ufffd\ufffd replaced \ufffd",
    "1,234.56 $5 50% C++ a_b a-b a/b user@example.com https://x.y/z?q=1&r=2",
    "\t\n\r\n\r \x1f \x9f",
]


def hostile_lines(count: int) -> list[str]:
    """Lines of characters sampled from everywhere in Unicode, mixed with words."""
    rng = random.Random(0)
    ranges = [(32, 127), (0, 32), (128, 0x250), (0x300, 0x370), (0x370, 0x800), (0x2000, 0x2070), (0x3000, 0x3100)]
    ranges += [(0x4E00, 0xA000), (0xF900, 0x10000), (0x1F300, 0x1FA00), (0x20000, 0x2FA20), (1, 0xD800)]
    words = ["the", " ", "  ", "don't", "[MASK]", "数学", ", ", "。", "running", "<|endoftext|>"]

    def bit() -> str:
        return rng.choice(words) if rng.random() < 0.4 else chr(rng.randrange(*rng.choice(ranges)))

    return ["".join(bit() for _ in range(rng.randrange(1, 40))) for _ in range(count)]


def mended(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@pytest.fixture(scope="session")
def mixed_lines(data_dir: Path) -> list[str]:
    """Real English and Chinese lines, and hostile ones."""
    lines = hostile_lines(6000) + HOSTILE
    for name in ("en_wikinews", "zh_wikipedia", "en_spoken"):
        file = iter(open_text(data_dir / f"corpora/{name}.txt.xz"))
        lines += [next(file)[1] for _ in range(5000)]
    return lines


def bert_peer(vocabulary: Path, lowercase: bool) -> Callable[[list[str]], list[list[int]]]:
    peer = BertTokenizer(vocab=str(vocabulary), do_lower_case=lowercase)
    return lambda texts: peer(texts, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", ["uncased", "cased", "chinese"])
def test_bert_ids_equal_hugging_faces(data_dir: Path, mixed_lines: list[str], name: str) -> None:
    vocabulary = data_dir / f"vocab/bert-base-{name}.vocab.txt"
    tokenizer = Tokenizer.from_vocabulary(vocabulary)
    expected = bert_peer(vocabulary, lowercase=name != "cased")([mended(line) for line in mixed_lines])
    assert len(mixed_lines) > 20_000
    assert_equal_ids(tokenizer, mixed_lines, expected)


@pytest.mark.parametrize("much", [0, 10**9], ids=["compiled", "remembered"])
def test_gpt2_ids_equal_hugging_faces(
    data_dir: Path, mixed_lines: list[str], much: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WordCache, "much_text", much)
    vocabulary, merges = data_dir / "vocab/gpt2.encoder.json", data_dir / "vocab/gpt2.vocab.bpe"
    peer = GPT2Tokenizer(vocab=str(vocabulary), merges=str(merges))
    expected = peer([mended(line) for line in mixed_lines])["input_ids"]
    assert_equal_ids(Tokenizer.from_merges(vocabulary, merges), mixed_lines, expected)


def assert_equal_ids(tokenizer: Tokenizer, lines: list[str], expected: list[list[int]]) -> None:
    fast = tokenizer.encode_many(lines)
    wrong = [line for line, ours, theirs in zip(lines, fast, expected, strict=True) if ours != theirs]
    assert not wrong, f"{len(wrong)} lines differ, the first is {wrong[0][:200]!r}"
    assert [encoding.ids for encoding in tokenizer.encode_with_offsets(lines[:7000])] == fast[:7000]


@pytest.fixture(scope="session")
def corpus(english_corpus: Path, chinese_corpus: Path) -> Corpus:
    return Corpus([english_corpus, chinese_corpus])


@pytest.fixture(scope="session", params=KINDS)
def trained(request: pytest.FixtureRequest, corpus: Corpus) -> Tokenizer:
    return Tokenizer.train(corpus, kind=request.param, size=500)


@pytest.mark.parametrize("much", [0, 10**9], ids=["compiled", "remembered"])
def test_the_fast_way_gives_the_librarys_ids(trained: Tokenizer, much: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WordCache, "much_text", much)
    lines = HOSTILE + hostile_lines(2000) + ["a [MASK] in <|endoftext|> the text", "<|endoftext|>", "x" * 5000, ""]
    expected = trained._inner.encode_batch([mended(line) for line in lines], add_special_tokens=False)
    assert trained.encode_many(lines) == [found.ids for found in expected]


def test_auto_tokenizer_reads_what_is_saved(trained: Tokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    peer = AutoTokenizer.from_pretrained(tmp_path)
    lines = [mended(line) for line in HOSTILE] + ["The captain paints Naïma's boat.", "王老师说：“这蛋糕真小！”"]
    assert peer(lines, add_special_tokens=False)["input_ids"] == trained.encode_many(lines)
    assert len(peer) == len(trained)
    assert (peer.pad_token_id, peer.unk_token_id, peer.mask_token_id) == (0, 1, trained.mask_id)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint() == trained.fingerprint()
    assert again.kind == trained.kind


def test_all_kinds_have_the_special_tokens(trained: Tokenizer) -> None:
    ids = [trained.pad_id, trained.unknown_id, trained.cls_id, trained.sep_id, trained.mask_id]
    assert ids == [0, 1, 2, 3, 4]
    assert trained.token_of(trained.mask_id) == "[MASK]"
    assert trained.id_of("[SEP]") == 3
    assert trained.id_of("no such piece") == trained.unknown_id
    assert len(trained) <= 500


def test_offsets_point_into_the_text(trained: Tokenizer) -> None:
    text = "The  Captain's Ångström, 船长的帆船!"
    encoding = trained.encode(text)
    assert len(encoding.ids) == len(encoding.offsets) == len(encoding.word_ids)
    covered = "".join(text[start:end] for start, end in dict.fromkeys(encoding.offsets))
    assert "".join(covered.split()) == "".join(text.split())
    assert encoding.word_ids == sorted(encoding.word_ids)


def test_decoding_gives_the_text_back(corpus: Corpus) -> None:
    text = "The captain paints a boat, says Anna."
    for kind in ("bpe", "characters"):
        tokenizer = Tokenizer.train(corpus, kind=kind, size=500)
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    tokenizer = Tokenizer.train(corpus)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text.lower()


def test_the_language_decides_and_is_reported(english_corpus: Path, chinese_corpus: Path) -> None:
    events: list[dict] = []
    english = Tokenizer.train(Corpus(english_corpus), on_event=events.append)
    assert english.kind == "wordpiece"
    assert english.lowercase
    assert "English" in events[-1]["text"]
    assert "lowercased" in events[-1]["text"]
    assert "change with tokenizer='wordpiece' or 'bpe' or 'words' or 'characters'" in events[-1]["text"]
    assert not Tokenizer.train(Corpus(english_corpus), lowercase=False, on_event=events.append).lowercase
    assert ", cased;" in events[-1]["text"]
    assert "lower case" not in events[-1]["text"]
    chinese = Tokenizer.train(Corpus(chinese_corpus), on_event=events.append)
    assert "Chinese" in events[-1]["text"]
    assert [chinese.token_of(number) for number in chinese.encode("船长检查Anna").ids][:4] == list("船长检查")


def test_case_and_accents_as_requested() -> None:
    corpus = Corpus.of(["Élan ÉLAN élan naïve Naïve"] * 10)
    cased = Tokenizer.train(corpus, kind="words", lowercase=False)
    assert cased.id_of("Élan") != cased.unknown_id
    kept = Tokenizer.train(corpus, kind="words", accents=True)
    assert kept.encode_many(["ÉLAN"]) == [[kept.id_of("élan")]]
    plain = Tokenizer.train(corpus, kind="words")
    assert plain.encode_many(["ÉLAN"]) == [[plain.id_of("elan")]]


def test_the_sample_is_seeded_bounded_and_reported() -> None:
    corpus = Corpus.of([f"{chr(0x3B1 + number)} " * 17_500 for number in range(50)])
    events: list[dict] = []

    def sampled_characters(seed: int) -> set[str]:
        tokenizer = Tokenizer.train(corpus, kind="characters", sample=420_000, seed=seed, on_event=events.append)
        return set(tokenizer._inner.get_vocab())

    assert sampled_characters(0) == sampled_characters(0) != sampled_characters(1)
    assert 5 < len(sampled_characters(0)) < 20
    assert "a sample (seed 0, 0.3 MB) of 2.6 MB" in events[0]["text"]


def test_learning_is_the_same_in_every_process(english_corpus: Path) -> None:
    code = (
        "import sys; from keel.data.corpus import Corpus; from keel.data.tokenizer import Tokenizer;"
        "print(Tokenizer.train(Corpus(sys.argv[1]), size=400).fingerprint())"
    )
    here = Tokenizer.train(Corpus(english_corpus), size=400).fingerprint()
    command = [sys.executable, "-c", code, str(english_corpus)]
    there = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert there.stdout.strip() == here


@pytest.mark.parametrize("text", ["a", "数", "!", "one two"])
def test_little_text_and_long_junk_are_enough(text: str) -> None:
    for kind in KINDS:
        tokenizer = Tokenizer.train(Corpus.of([text, "x" * 3_000_000]), kind=kind)  # pyright: ignore[reportArgumentType]
        assert tokenizer.unknown_id not in tokenizer.encode_many([text])[0]


def test_junk_is_reported_and_alone_it_is_refused() -> None:
    events: list[dict] = []
    Tokenizer.train(Corpus.of(["one two three", "x" * 5000]), on_event=events.append)
    assert "skips 5,000 characters in words of 1,000 characters or more" in events[0]["text"]
    with pytest.raises(KeelError, match="no whitespace for 1,000 characters or more: check"):
        Tokenizer.train(Corpus.of(["x" * 2_000_000]))


def test_learning_from_nothing_or_too_small_is_refused() -> None:
    with pytest.raises(KeelError, match="holds no text"):
        Tokenizer.train(Corpus.of(["", " \n "]))
    with pytest.raises(KeelError, match="bpe vocabulary of 100 is too small: use at least 262"):
        Tokenizer.train(Corpus.of(["text"]), kind="bpe", size=100)


def test_a_vocabulary_alone_is_enough(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\nhello\r\n##s\r\ncafe\r\n")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode_many(["Hellos CAFÉ"]) == [[5, 6, 7]]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    assert Tokenizer.load(tmp_path).encode_many(["Hellos hello"]) == [[1, 5]]


def test_a_token_named_twice_leaves_room_for_every_id(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\nx\nx\ny\n")
    tokenizer = Tokenizer.load(tmp_path)
    assert len(tokenizer) == 4
    assert tokenizer.encode_many(["x y z"]) == [[2, 3, 0]]
    with pytest.raises(KeelError, match=r"no \[MASK\]"):
        _ = tokenizer.mask_id


def test_padding_and_truncation_of_published_files_are_not_used(trained: Tokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    stored = json.loads((tmp_path / "tokenizer.json").read_text())
    stored["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    text = "a long text, longer than three"
    assert Tokenizer.load(tmp_path).encode(text) == trained.encode(text)


@pytest.mark.parametrize("content", ["{", "{}", '{"model": {"type": "Unigram"}}'])
def test_a_broken_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(KeelError, match=r"holds no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(KeelError, match="cannot be read"):
        Tokenizer.load(tmp_path)


def test_normal_forms_do_not_matter_to_an_uncased_tokenizer(corpus: Corpus) -> None:
    tokenizer = Tokenizer.train(corpus)
    text = "Naïma’s café"
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
    assert len(set(map(tuple, tokenizer.encode_many(forms)))) == 1


def test_unknown_words_are_given_as_they_stand() -> None:
    words = Tokenizer.from_words(["the", "boat"])
    assert words.unknown_words(["The boat.", "the Zoë, boat", "", "the boat"]) == [".", "Zoë", ","]
    encoding = Tokenizer.train(Corpus.of(["the boat and the goat"] * 9), kind="wordpiece", size=60)
    assert encoding.unknown_words(["the boat", "the Ж-boat 船"]) == ["Ж", "-", "船"]
    assert Tokenizer.from_words(["水手", "早上"]).unknown_words(["水手早上修理"]) == ["修理"]


@pytest.mark.parametrize("kind", ["wordpiece", "words", "characters"])
def test_chinese_is_written_without_the_spaces_that_cut_it(kind: str) -> None:
    texts = ["水手早上修理帆船。", "it's the sailor’s boat — a “boat” … 北京", "他说：“水手……”"]
    tokenizer = Tokenizer.train(Corpus.of(texts * 9), kind=kind, size=200)  # pyright: ignore[reportArgumentType]
    assert tokenizer.decode(tokenizer.encode(texts[0]).ids) == texts[0]
    if kind == "wordpiece":
        assert tokenizer.decode(tokenizer.encode(texts[1]).ids) == "it ' s the sailor ’ s boat — a “ boat ” …北京"


@pytest.mark.parametrize("words", [["the", "New", "York"], ["我们", "学习", "机器"]])
def test_a_pickle_keeps_every_rule(words: list[str]) -> None:
    at_whitespace = Tokenizer.from_whitespace_words(words)
    joined = Tokenizer.from_words(["in", "New", "York", "New_York"]).to_json()
    joined = Tokenizer.from_json(joined, phrases=[["New York"]])
    assert joined.encode("in New York").ids == [joined.id_of("in"), joined.id_of("New_York")]
    for tokenizer in (Tokenizer.from_words(words), at_whitespace, joined):
        other = pickle.loads(pickle.dumps(tokenizer))
        assert other.fingerprint() == tokenizer.fingerprint()
        assert other.special_ids == tokenizer.special_ids
        for text in ("in New York", "我们学习机器", "[UNK] the"):
            assert other.encode(text) == tokenizer.encode(text)


def test_default_bpe_vocabulary_fits_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitted_vocab_size(100_000) == 4096
    assert fitted_vocab_size(30_000_000) == 13_693
    monkeypatch.setattr("keel.data.tokenizer_training.LEAST_FITTED", 300)
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), 6)) for _ in range(900)]
    corpus = Corpus.of([" ".join(rng.choice(words, 20)) for _ in range(1000)])
    settings = TokenizerSettings(kind="bpe", vocab_size=50_257, frequent_pairs=True)
    assert len(train_tokenizer(corpus, settings)) == fitted_vocab_size(1000 * (20 * 7 - 1))


def test_characters_of_other_scripts_do_not_fill_the_vocabulary() -> None:
    """WordPiece: a character that is one in 40,000 is unknown; one in 10,000 is in the vocabulary."""
    text = "water and bread " * 3000 + " 漢" + " ж" * 8
    tokenizer = train_tokenizer(Corpus.of([text]), TokenizerSettings(kind="wordpiece", vocab_size=200))
    unknown = tokenizer.unknown_id
    assert tokenizer.encode("漢").ids == [unknown]
    assert unknown not in tokenizer.encode("ж").ids


def test_an_oversized_vocabulary_keeps_what_the_text_uses(english_corpus: Path) -> None:
    def train(oversize: float) -> Tokenizer:
        settings = TokenizerSettings(kind="wordpiece", vocab_size=400, oversize=oversize)
        return train_tokenizer(Corpus(english_corpus), settings)

    plain, trimmed = train(1), train(4)
    assert len(plain) == len(trimmed) == 400
    text = english_corpus.read_text(encoding="utf-8")
    assert len(trimmed.encode(text).ids) < len(plain.encode(text).ids)  # longer tokens instead of unused parts
    assert trimmed.unknown_id not in trimmed.encode(text).ids
    assert trimmed.fingerprint() == train(4).fingerprint()
    with pytest.raises(KeelError, match="WordPiece"):
        train_tokenizer(Corpus(english_corpus), TokenizerSettings(kind="bpe", vocab_size=400, oversize=2))
