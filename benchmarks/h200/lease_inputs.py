"""What the stages of lease.py read, made and packed on any machine, in uploads of limited size.

Groups of files, in order of need: tasks (labelled data, test sets, tokenizers), text (English paragraphs without the
documents that share 13 words in a row with WikiText-2 or LAMBADA, without e-mail addresses and phone numbers), chinese
(labelled data), answers (questions, and the model whose question answering is compared). A group is a tar file, cut
where an upload is full; it is unpacked when all its parts have arrived.
"""

import argparse
import hashlib
import json
import lzma
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from packing import extract, restore, tar_bytes, write

RECIPES = Path(__file__).parents[2] / "recipes" / "h200"
CLEANER = Path(__file__).parents[1] / "without_articles.py"
MANIFEST = "manifest.json"
PERSONAL = re.compile(r"[\w.+-]+@[\w-]+\.\w[\w.]*|\+?\d[\d ()-]{8,}\d")
"""E-mail addresses and what may be a phone number."""
TEXTS = ("wikipedia", "simple_wikipedia", "books", "wikinews", "spoken", "textbooks")
TEST_SETS = ("wikitext2/valid.txt.xz", "wikitext2/test.txt.xz", "lambada/lambada_test.jsonl.xz")
TOKENIZERS: dict[str, tuple[str, Literal["wordpiece", "bpe"]]] = {
    "english": ("english.toml", "wordpiece"),
    "english-gpt": ("english-gpt.toml", "bpe"),
}
"""Tokenizers by name: the recipe that sets their size, and their kind."""
FILES = {
    "tasks": (
        *(
            f"glue/{name}/{part}.tsv*"
            for name in ("SST-2", "CoLA", "MRPC", "RTE", "STS-B")
            for part in ("train", "dev")
        ),
        *("glue/STS-B/test.tsv*", "conll2003/eng.*", "google_analogies/questions-words*"),
        *("wikitext2/test.txt*", "lambada/lambada_test*", "zh/sts_b_zh/cnsd-sts-test*"),
    ),
    "text": (),
    "chinese": ("zh/msra_ner_split/*", "zh/peopledaily199801/*", "zh/icwb2/gold/*"),
    "answers": ("squad/dev-v1.1*", "squadshifts/*.json*", "squad_train_sample/*.json*"),
}
"""Files of each group below the folder of tasks."""


def prepare(options: argparse.Namespace) -> None:
    """Make the files of all groups, then the uploads 1/, 2/, ... below the folder of inputs."""
    tree = options.inputs / "tree"
    texts = clean_texts(options, tree / "text")
    for name, (recipe, kind) in TOKENIZERS.items():
        train_tokenizer(texts, RECIPES / recipe, kind, tree / "tokenizers" / name, options.vocabulary)
    for patterns in FILES.values():
        for pattern in patterns:
            for path in sorted((options.data / "tasks").glob(pattern)):
                copy(path, tree / "tasks" / path.relative_to(options.data / "tasks"))
    for path in sorted(path for path in options.reader.rglob("*") if path.is_file()):
        copy(path, tree / "reader" / path.relative_to(options.reader))
    members = {name: [] for name in FILES}
    for name, patterns in FILES.items():
        for pattern in patterns:
            members[name] += sorted((tree / "tasks").glob(pattern))
    members["tasks"] += sorted(path for path in (tree / "tokenizers").rglob("*") if path.is_file())
    members["answers"] += sorted(path for path in (tree / "reader").rglob("*") if path.is_file())
    members["text"] += texts
    fill_uploads(options.inputs, tree, members, int(options.upload_mb * 1e6))


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def clean_texts(options: argparse.Namespace, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    found = []
    for name in TEXTS:
        source, target = next((options.data / "corpora").glob(f"en_{name}.txt*")), out / f"en_{name}.txt.xz"
        if not target.exists():
            raw, kept, part = out / "raw.txt", out / "kept.txt", out / "part.xz"
            with open(raw, "w", encoding="utf-8") as file:
                file.writelines(islice(read_lines(source), options.lines or None))
            tests = [str(options.data / "tasks" / each) for each in TEST_SETS]
            subprocess.run([sys.executable, str(CLEANER), str(raw), str(kept), "--tests", *tests], check=True)
            removed = 0
            with lzma.open(part, "wt", encoding="utf-8", preset=options.preset) as file:
                for line in read_lines(kept):
                    line, count = PERSONAL.subn("", line)
                    removed += count
                    file.write(line)
            print(f"{name}: {removed:,} addresses and numbers removed", flush=True)
            raw.unlink()
            kept.unlink()
            part.replace(target)
        found.append(target)
    return found


def read_lines(path: Path) -> Iterator[str]:
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else open(path, encoding="utf-8") as file:
        yield from file


def train_tokenizer(
    texts: list[Path], recipe: Path, kind: Literal["wordpiece", "bpe"], out: Path, vocabulary: int
) -> None:
    """The tokenizer that a run by this recipe would train; the run does not wait for it then."""
    import keel
    from keel.data.tokenizer_training import TokenizerSettings
    from keel.data.tokenizer_training import train_tokenizer as train

    if (out / "tokenizer.json").exists():
        return
    text: dict[str, Any] = tomllib.loads(recipe.read_text())["text"]
    lowercase: Any = {"yes": True, "no": False}.get(text.get("lowercase", ""), "auto")
    settings = TokenizerSettings(
        kind=kind,
        vocab_size=vocabulary or text["vocabulary"],
        oversize=text.get("oversize", 1.0),
        lowercase=lowercase,
    )
    part = out.with_name(f"{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    train(keel.Corpus([*texts]), settings).save(part)
    part.rename(out)


def fill_uploads(inputs: Path, tree: Path, members: dict[str, list[Path]], limit: int) -> None:
    """Cut the tar file of each group where an upload is full; the manifest is in each upload."""
    number, room = 1, limit
    groups: dict[str, dict[str, Any]] = {}
    for old in inputs.glob("[0-9]*"):
        shutil.rmtree(old)
    for name, files in members.items():
        whole = tar_bytes(files, tree, half=True)
        parts: list[str] = []
        start = 0
        while start < len(whole):
            if not room:
                number, room = number + 1, limit
            cut = whole[start : start + room]
            start, room = start + len(cut), room - len(cut)
            parts.append(f"{name}.{len(parts):02}")
            (inputs / str(number)).mkdir(parents=True, exist_ok=True)
            write(inputs / str(number) / parts[-1], cut)
        groups[name] = {"parts": parts, "digest": hashlib.sha256(whole).hexdigest()}
        print(f"{name}: {len(whole) / 1e6:.1f} MB in {len(parts)} parts")
    for upload in range(1, number + 1):
        write(inputs / str(upload) / MANIFEST, json.dumps(groups, indent=2).encode())
    print(f"{number} uploads of up to {limit / 1e6:.0f} MB: {inputs}/1 to {inputs}/{number}")


def receive(upload: Path, work: Path) -> None:
    """Take what is in an upload; groups whose parts have all arrived are unpacked into WORK/inputs, whose file
    GROUP.complete is written last."""
    received, target = work / "received", work / "inputs"
    received.mkdir(parents=True, exist_ok=True)
    for path in sorted(upload.iterdir()):
        if not (received / path.name).exists() or path.name == MANIFEST:
            write(received / path.name, path.read_bytes())
    groups: dict[str, dict[str, Any]] = json.loads((received / MANIFEST).read_text())
    for name, group in groups.items():
        parts = [received / part for part in group["parts"]]
        if (target / f"{name}.complete").exists() or not all(part.exists() for part in parts):
            continue
        whole = b"".join(part.read_bytes() for part in parts)
        if hashlib.sha256(whole).hexdigest() != group["digest"]:
            for part in parts:
                part.unlink()
            raise SystemExit(f"the parts of {name} are damaged or of different versions: give all of them again")
        extract(whole, target)
        if name == "answers":
            for path in (target / "reader").glob("*.safetensors"):
                restore(path)
        write(target / f"{name}.complete", b"")
