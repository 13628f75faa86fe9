import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keel.data import token_store as module
from keel.data.corpus import Block, Corpus
from keel.data.encoding_worker import encode_chunks
from keel.data.masking_units import MaskingUnits
from keel.data.sentence_splitting import split_sentences
from keel.data.term_matcher import TermMatcher
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError

FILES = ["bounds.bin", "ids.bin", "words.bin"]
UNITS = MaskingUnits(
    phrases=TermMatcher(["the boat", "船长检查"], ignore_case=True),
    entities=TermMatcher(["Anna", "Peter", "The harbour", "渔网", "Atlantis"]),
)


@pytest.fixture(scope="module")
def tokenizer(english_corpus: Path, chinese_corpus: Path) -> Tokenizer:
    return Tokenizer.train(Corpus([english_corpus, chinese_corpus]), size=400)


@pytest.fixture
def corpus(english_corpus: Path, chinese_corpus: Path) -> Corpus:
    return Corpus([english_corpus, chinese_corpus])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"}


@pytest.mark.parametrize("workers", [1, 2])
def test_every_sentence_is_where_the_bounds_say(
    corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(module, "CHUNK", 5000)
    tokens = Tokens.build(corpus, tokenizer, tmp_path, words=True, workers=workers)
    expected = [tokenizer.encode_many(split_sentences(document)) for document in corpus.documents()]
    found = [
        [tokens.ids[tokens.starts[number] : tokens.starts[number + 1]].tolist() for number in range(first, last)]
        for first, last in zip(tokens.documents, tokens.documents[1:], strict=False)
    ]
    assert found == expected
    assert tokens.ids.dtype == np.uint16
    assert len(tokens) == tokens.starts[-1]
    assert tokens.documents[-1] == len(tokens.starts) - 1
    tokens.verify()
    bits = np.unpackbits(tokens.word_starts, bitorder="little")[: len(tokens)]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert bits[tokens.starts[:-1]].all()
    assert 0.3 < bits.mean() < 0.99


@pytest.mark.parametrize("workers", [1, 2])
def test_lines_may_be_sentences_as_they_are(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(module, "CHUNK", 100)
    lines = ["The boat is small. It belongs to Anna.", "  Peter paid. ", "", "No. The judge reads."] * 5
    (tmp_path / "text.txt").write_text("\n".join(lines))
    corpus = Corpus(tmp_path / "text.txt", sentences="lines")
    tokens = Tokens.build(corpus, tokenizer, tmp_path / "lines", workers=workers)
    found = [tokens.ids[start:stop].tolist() for start, stop in zip(tokens.starts, tokens.starts[1:], strict=False)]
    assert found == tokenizer.encode_many([line.strip() for line in lines if line])
    assert corpus.fingerprint() != Corpus(tmp_path / "text.txt").fingerprint()
    assert len(Tokens.build(Corpus(tmp_path / "text.txt"), tokenizer, tmp_path / "split").starts) > len(tokens.starts)


@pytest.mark.parametrize("workers", [1, 2])
def test_masking_units_are_stored_with_the_tokens(
    corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(module, "CHUNK", 5000)
    tokens = Tokens.build(corpus, tokenizer, tmp_path, units=UNITS, workers=workers)
    sentences = [sentence for document in corpus.documents() for sentence in split_sentences(document)]
    expected = UNITS.encode(tokenizer, sentences)
    assert tokens.units is not None
    assert np.array_equal(tokens.units, expected.codes)
    word, phrase, entity = (float(np.mean(expected.codes >> level & 1)) for level in range(3))
    assert tokens.unit_lengths() == pytest.approx([1 / word, 1 / phrase, 1 / entity])
    assert word > phrase > 0
    texts = "\n".join(sentences)
    names = [name for name in ("Anna", "Atlantis", "Peter", "The harbour", "渔网") if name not in texts]
    assert tokens.missing_names == (len(names), names)
    assert sorted(contents(tmp_path)) == ["bounds.bin", "ids.bin", "index.json", "units.bin"]
    tokens.verify()
    flip_a_bit(tmp_path / "units.bin", 100)
    with pytest.raises(KeelError, match=r"units\.bin: block 0"):
        Tokens.open(tmp_path).verify()


def test_tokens_with_other_units_are_others(corpus: Corpus, tokenizer: Tokenizer) -> None:
    every = [None, MaskingUnits(), UNITS, MaskingUnits(entities=UNITS.entities)]
    assert len({Tokens.build(corpus, tokenizer, units=units).folder for units in every}) == 4
    assert Tokens.build(corpus, tokenizer).units is None


def test_sizes_on_disk_are_as_promised(corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokens = Tokens.build(corpus, tokenizer, tmp_path)
    assert (tmp_path / "ids.bin").stat().st_size == 2 * len(tokens)
    assert (tmp_path / "bounds.bin").stat().st_size == 8 * (len(tokens.starts) - 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "bounds.bin", "ids.bin", "index.json"]


def test_above_65536_tokens_an_id_takes_four_bytes(tmp_path: Path) -> None:
    characters = [chr(number) for number in range(0x4E00, 0x9000)] + [chr(number) for number in range(0x20000, 0x2A000)]
    vocabulary = ["[UNK]", *characters, *("##" + character for character in characters)]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    large = Tokenizer.load(tmp_path)
    tokens = Tokens.build(Corpus.of(["一二三"]), large, tmp_path / "tokens")
    assert len(large) > 1 << 16
    assert tokens.ids.dtype == np.uint32
    assert tokens.ids.tolist() == large.encode("一二三").ids


def test_nothing_is_built_twice(corpus: Corpus, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Tokens.build(corpus, tokenizer)
    monkeypatch.setattr(module, "_build", None)
    assert Tokens.build(corpus, tokenizer).folder == first.folder
    with pytest.raises(TypeError):
        Tokens.build(corpus, tokenizer, words=True)


def test_a_folder_of_other_tokens_is_refused(corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path) -> None:
    Tokens.build(corpus, tokenizer, tmp_path)
    with pytest.raises(KeelError, match="holds tokens of another corpus or tokenizer"):
        Tokens.build(Corpus.of(["other"]), tokenizer, tmp_path)


def test_empty_documents_and_sentences_leave_no_bounds(tokenizer: Tokenizer, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 1)  # so that what is empty also falls between chunks
    documents = ["\u200b", "One. \u200b\nTwo.", "\u200b \u200b", "\x07\n", "Three.", "\u200b"]
    tokens = Tokens.build(Corpus.of(documents), tokenizer, tmp_path, workers=1)
    assert len(tokens.starts) == 4
    assert tokens.documents.tolist() == [0, 2, 3]


@pytest.mark.parametrize("documents", [[], ["", " \n"], ["\u200b"]])
def test_an_empty_corpus_is_refused_and_leaves_nothing(
    documents: list[str], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(KeelError, match="holds no text"):
        Tokens.build(Corpus.of(documents), tokenizer, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_one_sentence_is_enough(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokens = Tokens.build(Corpus.of(["One sentence"]), tokenizer, tmp_path)
    assert (len(tokens.starts), tokens.documents.tolist()) == (2, [0, 1])


def flip_a_bit(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_and_named_and_the_text_encoded_again(
    corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(module, "BLOCK", 1000)
    whole = Tokens.build(corpus, tokenizer, tmp_path, words=True)
    before = contents(tmp_path)
    flip_a_bit(tmp_path / name, 1700)
    with pytest.raises(KeelError, match=rf"{name}: block 1 \(from byte 1,000\) has changed .*: delete {tmp_path}"):
        Tokens.open(tmp_path).verify()
    events: list[dict] = []
    # As a kill may leave it, between the last two writes of a build.
    (tmp_path / "progress.json").write_text(json.dumps({"settings": whole.index["settings"], "progress": {"ids": 900}}))
    Tokens.build(corpus, tokenizer, tmp_path, words=True, on_event=events.append)
    assert f"{tmp_path / name}: block 1 " in events[0]["text"]
    assert "encoding the text again" in events[0]["text"]
    assert contents(tmp_path) == before


def test_a_changed_index_is_named(corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path) -> None:
    Tokens.build(corpus, tokenizer, tmp_path)
    index = tmp_path / "index.json"
    flip_a_bit(index, index.read_bytes().index(b'"unknown"') + 12)
    before = contents(tmp_path)
    for read in (lambda: Tokens.open(tmp_path), lambda: Tokens.build(corpus, tokenizer, tmp_path)):
        with pytest.raises(KeelError, match=rf"index\.json has changed .*: delete {tmp_path}"):
            read()
    assert contents(tmp_path) == before  # whose tokens they are is no longer known


def test_a_short_or_missing_file_is_named(corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path) -> None:
    Tokens.build(corpus, tokenizer, tmp_path)
    before = contents(tmp_path)
    os.truncate(tmp_path / "ids.bin", 10)
    with pytest.raises(KeelError, match=r"ids\.bin has 10 bytes, not"):
        Tokens.open(tmp_path)
    Tokens.build(corpus, tokenizer, tmp_path)
    assert contents(tmp_path) == before
    with pytest.raises(KeelError, match="has no complete tokens"):
        Tokens.open(tmp_path / "nowhere")


def test_a_build_resumes_from_its_last_commit(
    corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 3000)
    monkeypatch.setattr(module, "COMMIT_SECONDS", 0)
    options: dict[str, Any] = {"words": True, "units": UNITS, "workers": 1}
    Tokens.build(corpus, tokenizer, tmp_path / "whole", **options)

    class StoppedError(Exception):
        pass

    def stop(event: dict) -> None:
        if event["event"] == "tokens" and rng.random() < 0.3:
            raise StoppedError

    rng = random.Random(0)
    stops = 0
    while True:
        try:
            tokens = Tokens.build(corpus, tokenizer, tmp_path / "parts", on_event=stop, **options)
            break
        except StoppedError:
            stops += 1
            for name in (*FILES, "units.bin", "names.bin"):  # what a kill may leave behind the last commit
                with open(tmp_path / "parts" / name, "ab") as file:
                    file.write(b"torn")
    assert stops > 3
    assert tokens.missing_names == (1, ["Atlantis"])
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


@pytest.mark.multi
def test_an_error_in_a_worker_is_reported_unchanged(tokenizer: Tokenizer) -> None:
    no_text: Any = None
    chunks = [[Block(True, "One.", 1)], [Block(True, no_text, 2)]]
    with pytest.raises(KeelError, match=r"failed \(TypeError: expected string"):
        list(encode_chunks(tokenizer, chunks, words=False, workers=2))


BUILD = """
import sys
from keel.data import token_store as tokens
from keel.data.corpus import Corpus
from keel.data.tokenizer import Tokenizer
tokens.CHUNK, tokens.COMMIT_SECONDS = 20_000, 0
print("begins", flush=True)
tokens.Tokens.build(Corpus(sys.argv[1]), Tokenizer.load(sys.argv[2]), sys.argv[3], words=True, workers=2)
"""


def start_build(text: Path, tokenizer: Path, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILD, str(text), str(tokenizer), str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.multi
def test_killed_at_any_moment_it_resumes(english_corpus: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    text, saved = tmp_path / "text.txt", tmp_path / "tokenizer"
    text.write_bytes(english_corpus.read_bytes() * 10)
    tokenizer.save(saved)
    start_build(text, saved, tmp_path / "whole").communicate()
    rng = random.Random(0)
    for _ in range(4):
        process = start_build(text, saved, tmp_path / "parts")
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0.1, 0.8))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    two = [start_build(text, saved, tmp_path / "parts") for _ in range(2)]
    assert [process.communicate()[1] for process in two] == ["", ""]
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


@pytest.mark.multi
def test_on_a_full_disk_what_is_done_is_kept(english_corpus: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    text, folder = tmp_path / "text.txt", tmp_path / "tokens"
    text.write_bytes(english_corpus.read_bytes() * 4)
    code = BUILD.replace("workers=2", "workers=1")
    tokenizer.save(tmp_path / "tokenizer")
    failed = subprocess.run(
        [sys.executable, "-c", code, str(text), str(tmp_path / "tokenizer"), str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 1
    assert "is full: free some space and rerun" in failed.stderr.splitlines()[-1]
    events: list[dict] = []
    Tokens.build(Corpus(text), tokenizer, folder, words=True, workers=1, on_event=events.append).verify()
    assert "resuming encoding after" in events[0]["text"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_named(corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(KeelError, match="cannot be written"):
        Tokens.build(corpus, tokenizer, tmp_path / "tokens")


def test_a_file_in_the_place_of_the_folder_is_named(corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("in the way")
    with pytest.raises(KeelError, match="tokens cannot be written"):
        Tokens.build(corpus, tokenizer, tmp_path / "tokens")


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["Words follow words. ", "数学是科学", "x"])
def test_a_line_of_50_megabytes_takes_little_memory(tokenizer: Tokenizer, tmp_path: Path, unit: str) -> None:
    text, saved = tmp_path / "text.txt", tmp_path / "tokenizer"
    text.write_text(unit * (50_000_000 // len(unit.encode())), encoding="utf-8")
    tokenizer.save(saved)
    code = BUILD.replace("words=True, ", "").replace("tokens.CHUNK, tokens.COMMIT_SECONDS = 20_000, 0", "")
    code += """
import resource
from pathlib import Path
own = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
print(own + 2 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(text), str(saved), str(tmp_path / "tokens")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout.split()[-1]) < 500_000  # kB, with both workers
    assert len(Tokens.open(tmp_path / "tokens")) > 40
