"""What the stages of lease_chinese_stages.py read, made and packed as in lease_inputs.py.

Groups of files, in order of need: chinese-tasks (labelled data), chinese-text (both Chinese texts without the documents
that share a run of 30 characters with a passage of CMRC2018, without e-mail addresses and phone numbers; a tokenizer;
names), languages-tasks and languages-text (the same for seven other languages; the Chinese text is that of the first).

The names are those of WikiAnn's Chinese files (links of an encyclopedia) and three kinds of the text itself: the
subjects with which articles begin (鹤鸣山道教石窟寺及石刻位于 ...), titles in 《》, and names with a middle dot between
punctuation; all of three characters or more, since two are a word for jieba. No names come from MSRA or from the
newspaper that it is made of, so none of its labels are used. Some subjects are terms rather than names, and a name that
is in no list is not masked as a whole. Phrases contain most of the names already: the names move 1.3% of the bounds
between units (0.7% of the tokens are joined to the token before, 0.6% divided from it), the phrases 8.4%.
"""

import argparse
import lzma
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from lease_inputs import PERSONAL, RECIPES, copy, fill_uploads, read_lines, train_tokenizer

RUN = 30
"""Characters in a row that a document must not share with a passage of CMRC2018."""
CHINESE = ("zh_wikipedia", "zh_wikipedia2")
LANGUAGES = ("en_wikipedia", "multi_de", "multi_fr", "multi_es", "multi_ru", "multi_ja", "multi_ko")
XNLI = ("en", "zh", "de", "fr", "es", "ru")
FILES = {
    "chinese-tasks": (
        *("zh/ocnli/train.10k*", "zh/ocnli/dev*", "zh/msra_ner_split/*", "zh/cmrc2018/train*", "zh/cmrc2018/dev*"),
        *("zh/chnsenticorp/train*", "zh/chnsenticorp/test*"),
    ),
    "languages-tasks": ("wikiann_panx/*", *(f"xnli_dev/{name}.jsonl*" for name in XNLI), "mnli_slice/*", "tatoeba/*"),
}
NAME = re.compile(r"[\u4e00-\u9fff·]{3,20}")
TITLE = re.compile(r"《([\u4e00-\u9fff·]{3,15})》")
DOTTED = re.compile(r"(?<![\u4e00-\u9fff·])[\u4e00-\u9fff]{1,6}(?:·[\u4e00-\u9fff]{1,6})+(?![\u4e00-\u9fff·])")
SUBJECT = re.compile(r"[《「“]?([\u4e00-\u9fff·]{3,20}?)[》」”]?(?:（|\(|，|是|为|位于)")
"""What a document begins with, before its definition."""
NO_SUBJECT = re.compile(r"[在由从按据是本该此其这]|以下|早年|成立|最初|现任|生于|.*年")


def prepare_chinese(options: argparse.Namespace) -> None:
    """Make the files of all groups, then the uploads 1/, 2/, ... below the folder of inputs."""
    tree, tasks = options.inputs / "tree", options.data / "tasks"
    runs = runs_of_passages(tasks / "zh" / "cmrc2018")
    chinese = [clean(options, name, tree / "chinese-text" / f"{name}.txt.xz", runs) for name in CHINESE]
    names = write_names(tasks / "wikiann_panx", chinese, tree / "chinese-text" / "names.txt")
    others = []
    for name in LANGUAGES:
        language = name.replace("multi_", "")[:2]
        others.append(clean(options, name, tree / "languages-text" / f"{language}_text.txt.xz", frozenset()))
    mixed = [Path(f"{path.name[:2]}:{path}") for path in (others[0], *chinese, *others[1:])]
    tokenizers = tree / "tokenizers"
    for texts, recipe, name in (
        (chinese, "ernie-12x384-chinese.toml", "chinese"),
        (mixed, "multilingual-12x384.toml", "multilingual"),
    ):
        train_tokenizer(texts, RECIPES / recipe, "wordpiece", tokenizers / name, options.vocabulary)
    members: dict[str, list[Path]] = {"chinese-tasks": [], "chinese-text": [], "languages-tasks": []}
    for group, patterns in FILES.items():
        for path in sorted(path for pattern in patterns for path in tasks.glob(pattern)):
            members[group].append(tree / "tasks" / path.relative_to(tasks))
            copy(path, members[group][-1])
    members["chinese-text"] = [*chinese, names, *sorted((tokenizers / "chinese").iterdir())]
    members["languages-text"] = [*others, *sorted((tokenizers / "multilingual").iterdir())]
    fill_uploads(options.inputs, tree, members, int(options.upload_mb * 1e6))


def runs_of_passages(folder: Path) -> frozenset[int]:
    """Hashes of all runs of characters of the passages, without whitespace."""
    from keel.tasks import TASKS

    passages = {text for part in ("train", "dev") for path in folder.glob(f"{part}.json*")
                for text in TASKS["answer"].read_labelled(path).seconds or []}  # fmt: skip
    return frozenset(run for passage in passages for run in runs_of(passage))


def runs_of(text: str) -> Iterator[int]:
    plain = "".join(text.split())
    return (hash(plain[start : start + RUN]) for start in range(len(plain) - RUN + 1))


def clean(options: argparse.Namespace, name: str, out: Path, runs: frozenset[int]) -> Path:
    """A text without documents that share a run, addresses and phone numbers."""
    if out.exists():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    source = next((options.data / "corpora").glob(f"{name}.txt*"))
    documents = characters = dropped = removed = 0
    with lzma.open(part, "wt", encoding="utf-8", preset=options.preset) as file:
        for document in documents_of(islice(read_lines(source), options.lines or None)):
            documents += 1
            if runs and any(not runs.isdisjoint(runs_of(line)) for line in document.splitlines()):
                dropped, characters = dropped + 1, characters + len(document)
                continue
            document, count = PERSONAL.subn("", document)
            removed += count
            file.write(document + "\n")
    part.replace(out)
    shared = f"{dropped:,} of {documents:,} documents dropped ({characters:,} characters)"
    print(f"{name}: {shared}, {removed:,} addresses and numbers removed", flush=True)
    return out


def documents_of(lines: Iterator[str]) -> Iterator[str]:
    document: list[str] = []
    for line in lines:
        if line.strip():
            document.append(line)
        elif document:
            yield "".join(document)
            document = []
    if document:
        yield "".join(document)


def write_names(folder: Path, texts: list[Path], out: Path) -> Path:
    """A file with a name per line."""
    from keel.data.tag_schemes import extract_entities
    from keel.tasks import TASKS

    if out.exists():
        return out
    found: dict[str, set[str]] = {"WikiAnn": set(), "subjects": set(), "titles": set(), "dotted": set()}
    for path in sorted(folder.glob("*-zh.*")):
        examples = TASKS["tag"].read_labelled(path)
        for words, tags in zip(examples.words, examples.values, strict=True):
            linked = ("".join(words[entity.start : entity.end]) for entity in extract_entities(list(tags)))
            found["WikiAnn"] |= {name for name in linked if NAME.fullmatch(name)}
    for path in texts:
        for document in documents_of(read_lines(path)):
            subject = SUBJECT.match(document)
            if subject and not NO_SUBJECT.match(subject[1]):
                found["subjects"].add(subject[1])
            found["titles"].update(TITLE.findall(document))
            found["dotted"].update(name for name in DOTTED.findall(document) if NAME.fullmatch(name))
    names = sorted(set().union(*found.values()))
    out.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    print(f"{len(names):,} names:", ", ".join(f"{len(each):,} {kind}" for kind, each in found.items()), flush=True)
    return out
