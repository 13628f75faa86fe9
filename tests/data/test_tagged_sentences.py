"""Words and their tags are read from whatever people write them in, and errors name what is wrong with its location."""

import gzip
import lzma
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from keel.data.examples import Columns, Examples
from keel.data.tagged_sentences import read_tagged_sentences, split_words
from keel.errors import KeelError

CONLL = (
    "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\n\nPeter NNP I-NP I-PER\nBlackburn NNP I-NP I-PER\n"
)
CONLLU = """\
# sent_id = 1
# text = I don't
1\tI\tI\tPRON\tPRP\t_\t3\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t0\troot\t_\t_
3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

# sent_id = 2
1\tNo\tno\tINTJ\tUH\t_\t0\troot\t_\t_
"""


def read(path: Path, text: str, **columns: Any) -> tuple[Examples, list[str]]:
    messages: list[str] = []
    path.write_text(text, encoding="utf-8")
    return read_tagged_sentences(path, Columns(**columns), lambda event: messages.append(event["text"])), messages


def word_tags(examples: Examples) -> list[tuple[str, str]]:
    return [(" ".join(example.words), " ".join(example.names)) for example in examples]


def test_columns_are_read_and_iob1_becomes_bio(tmp_path: Path) -> None:
    examples, messages = read(tmp_path / "a.txt", CONLL)
    assert word_tags(examples) == [("EU rejects", "B-ORG O"), ("Peter Blackburn", "B-PER I-PER")]
    assert examples[1].location == f"{tmp_path}/a.txt:7"
    assert examples.names == ("B-ORG", "B-PER", "I-ORG", "I-PER", "O")
    assert "words in column 1, tags in column 4" in messages[0]
    assert "BIO1" in messages[1]
    assert "to BIO" in messages[1]


def test_columns_and_schemes_can_be_chosen(tmp_path: Path) -> None:
    examples, _ = read(tmp_path / "a.txt", CONLL, label_column="2")
    assert word_tags(examples)[0] == ("EU rejects", "NNP VBZ")
    examples, _ = read(tmp_path / "a.txt", CONLL, text_column="2", label_column="4", scheme="BIOES")
    assert word_tags(examples) == [("NNP VBZ", "S-ORG O"), ("NNP NNP", "B-PER E-PER")]
    assert len(examples.names) == 9
    with pytest.raises(KeelError, match="label_column=5: it has 4 columns"):
        read(tmp_path / "a.txt", CONLL, label_column="5")
    with pytest.raises(KeelError, match="cannot be converted to BIO"):
        read(tmp_path / "a.txt", CONLL, label_column="2", scheme="BIO")


def test_tabs_comments_and_a_hash_that_is_a_word(tmp_path: Path) -> None:
    examples, _ = read(tmp_path / "a.tsv", "# id = 7\n#\tO\na b\tB-X\n\n# a remark\nc\tO\n")
    assert word_tags(examples) == [("# a b", "O B-X"), ("c", "O")]
    assert examples[0].words == ("#", "a b")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_compressed_conllu_has_words(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "a.conllu.z"
    path.write_bytes(pack(CONLLU.encode()))
    assert word_tags(read_tagged_sentences(path)) == [("I do n't", "PRON AUX PART"), ("No", "INTJ")]
    by_name = read_tagged_sentences(path, Columns(label_column="xpos"))
    assert word_tags(by_name)[0] == ("I do n't", "PRP VBP RB")
    with pytest.raises(KeelError, match="CoNLL-U has ID, FORM"):
        read_tagged_sentences(path, Columns(label_column="ner"))


def test_a_token_of_conllu_without_a_tag_is_named(tmp_path: Path) -> None:
    bare = CONLLU.replace("PART", "_").replace("INTJ", "_")
    with pytest.raises(KeelError, match=r"a\.conllu:6: 2 tokens have no UPOS, such as \"n't\": add it, or drop the s"):
        read(tmp_path / "a.conllu", bare)
    assert word_tags(read(tmp_path / "a.conllu", bare, label_column="XPOS")[0])[1] == ("No", "UH")
    assert word_tags(read(tmp_path / "a.conllu", bare, label_column="FEATS")[0])[1] == ("No", "_")
    examples, messages = read(tmp_path / "a.conllu", bare.replace("PRON", "_").replace("AUX", "_"))
    assert ([example.words for example in examples], examples.kind) == ([("I", "do", "n't"), ("No",)], None)
    assert "words are FORM, without UPOS tags" in messages[0]
    with pytest.raises(KeelError, match="has words without tags"):
        _ = examples.labels


def test_chinese_characters_words_and_segmented_text(tmp_path: Path) -> None:
    characters, _ = read(tmp_path / "a.txt", "中 B-LOC\n国 I-LOC\n人 O\n\n我 O\n")
    assert (characters[0].text, characters[0].names) == ("中国人", ("B-LOC", "I-LOC", "O"))
    segmented, messages = read(tmp_path / "b.txt", "共同  创造  美好  的  新  世纪\n我们  希望  和平\n")
    assert segmented[0].text == "共同创造美好的新世纪"
    assert segmented[0].names == tuple("BEBEBESSBE")
    assert segmented.names == ("B", "E", "M", "S")
    assert "(format='segmented';" in messages[0]
    slashes, _ = read(tmp_path / "c.txt", "迈向/v  [中央/n  电台/n]nt  1/2/m\n新/a\n")
    assert word_tags(slashes) == [("迈向 中央 电台 1/2", "v n n m"), ("新", "a")]


def test_a_word_without_a_tag_among_slashes_is_named(tmp_path: Path) -> None:
    text = "the/DT cat/NN sat/VB\n" * 10
    assert word_tags(read(tmp_path / "a.txt", text)[0])[0] == ("the cat sat", "DT NN VB")
    with pytest.raises(KeelError, match=r"a\.txt:11: 'cat' has no tag: write word/tag"):
        read(tmp_path / "a.txt", text + "the/DT cat sat/VB\n")


SLASHED = "迈向/v  充满/v  [中央/n  电台/n]nt  的/u\n１９９８年/t  新年/t\n"


def test_segmented_text_with_tags_gives_the_words_alone(tmp_path: Path) -> None:
    examples, messages = read(tmp_path / "a.txt", SLASHED, format="segmented")
    assert examples[0].text == "迈向充满中央电台的"
    assert examples[1].names == tuple("BMMMEBE")
    assert "format='slashes'" in messages[0]


def test_word_segmentation_of_a_published_corpus(data_dir: Path, tmp_path: Path) -> None:
    with lzma.open(data_dir / "tasks/zh/peopledaily199801/199801.txt.xz", "rt", encoding="utf-8") as file:
        start = "".join(islice(file, 500))
    examples, _ = read(tmp_path / "a.txt", start, format="segmented")
    assert examples[0].text.startswith("迈向充满希望的新世纪")
    assert not any("/v" in example.text or "/n" in example.text for example in examples)


def test_characters_with_their_position_in_the_word(tmp_path: Path) -> None:
    text = "科0\tO\n技1\tO\n10\tO\n北0\tB-GPE.NAM\n京1\tI-GPE.NAM\n\n\ufeff\n口0\tO\n0\tO\n" + "的0\tO\n" * 30
    examples, messages = read(tmp_path / "a.conll", text)
    assert examples[0].text == "科技1北京"
    assert examples[1].text.startswith("口0的的")
    assert "position" in " ".join(messages)
    plain, _ = read(tmp_path / "b.conll", "科\tO\n1\tO\n\n技\tO\n10\tB-X\n")
    assert plain[1].text == "技 10"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("the/DT cat/NN\na/DT dog/NN sat/VB\n", "slashes"),
        ("我们  希望  和平\n", "segmented"),
        ("我 在 北京 。\n" * 5, "segmented"),
        ("Yes .\n", "text"),
    ],
)
def test_the_inferred_format_is_reported_with_its_flag(tmp_path: Path, text: str, form: str) -> None:
    examples, (messages, *_) = read(tmp_path / "a.txt", text)
    assert f"(format={form!r}; choose another to change it)" in messages
    assert word_tags(read(tmp_path / "a.txt", text, format=form)[0]) == word_tags(examples)


def test_words_here_and_tags_there(tmp_path: Path) -> None:
    (tmp_path / "seq.out").write_text("O B-city\nO\n")
    examples, _ = read(tmp_path / "seq.in", "to boston\nhi\n")
    assert word_tags(examples) == [("to boston", "O B-city"), ("hi", "O")]
    with pytest.raises(KeelError, match=r"3 lines, but its seq\.out has 2"):
        read(tmp_path / "seq.in", "to boston\nhi\nyes\n")
    with pytest.raises(KeelError, match=r"seq\.in:1: this line is empty, but that of seq\.out has 2 tags"):
        read(tmp_path / "seq.in", "\nhi\n")
    (tmp_path / "seq.out").write_text("O B-city\n\nO\n")
    assert len(read(tmp_path / "seq.in", "to boston\n\nhi\n")[0]) == 2


def test_lists_records_and_running_text(tmp_path: Path) -> None:
    pairs = [(["EU", "rejects"], ["B-ORG", "O"]), (["Peter"], ["B-PER"])]
    expected = [("EU rejects", "B-ORG O"), ("Peter", "B-PER")]
    assert word_tags(read_tagged_sentences(pairs)) == expected
    assert word_tags(read_tagged_sentences([{"tokens": words, "ner_tags": tags} for words, tags in pairs])) == expected
    lines = '{"words": ["EU", "rejects"], "tags": ["B-ORG", "O"]}\n{"words": ["Peter"], "tags": ["B-PER"]}\n'
    assert word_tags(read(tmp_path / "a.jsonl", lines)[0]) == expected
    bare = read_tagged_sentences([["EU", "rejects"], ["Peter"]])
    assert (bare.kind, bare[0].words) == (None, ("EU", "rejects"))
    text, messages = read(tmp_path / "a.txt", "EU rejects it.\n\nPeter Blackburn\n")
    assert [example.text for example in text] == ["EU rejects it.", "Peter Blackburn"]
    assert "text without tags" in messages[0]
    with pytest.raises(KeelError, match="no labels"):
        _ = text.labels


@pytest.mark.parametrize(
    "text", ["江泽民主席在北京讲话。\n\n我爱北京\n", "他在北京讲话。\n我爱北京\n\n你好\n", "我爱你\n\n你好\n\n"]
)
def test_chinese_paragraphs_are_text(tmp_path: Path, text: str) -> None:
    examples, messages = read(tmp_path / "a.txt", text)
    assert [(example.text, example.words) for example in examples] == [(line, ()) for line in text.split()]
    assert "text without tags" in messages[0]
    words, _ = read(tmp_path / "b.txt", "江泽民\n主席\n讲话\n\n我\n爱\n")
    assert [example.words for example in words] == [("江泽民", "主席", "讲话"), ("我", "爱")]


def test_running_text_is_split_as_corpora_are() -> None:
    assert split_words("Mr. O'Neil (U.S.) pays $5.20, e-mail: a_b!") == (
        ["Mr", ".", "O'Neil", "(", "U.S", ".", ")", "pays", "$", "5.20", ",", "e-mail", ":", "a_b", "!"]
    )
    assert split_words("我爱Python 3") == ["我", "爱", "Python", "3"]
    assert split_words("我们爱北京", chinese_words=True) == ["我们", "爱", "北京"]


def test_broken_tags_are_read_as_conlleval_reads_them_and_counted(tmp_path: Path) -> None:
    examples, messages = read(tmp_path / "a.txt", "a B-X\nb I-Y\n\nc O\nd I-X\ne I-X\n\nf B-X\n\ng B-Y\n")
    assert word_tags(examples)[:2] == [("a b", "B-X B-Y"), ("c d e", "O B-X I-X")]
    assert len(messages) == 2
    assert re.search(r"a\.txt:2: 2 invalid tags in BIO, such as 'I-Y' after 'B-X'; .* correct the tags", messages[1])


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ("S B E B", r"a\.txt:4: 1 invalid tag in BMES, such as 'B' at the end of the sentence;"),
        ("S-X O B-X", r"a\.txt:3: 1 invalid tag in BIOES, such as 'B-X' at the end of the sentence;"),
        ("E-X S-X O", r"a\.txt:1: 1 invalid tag in BIOES, such as 'E-X' at the start of the sentence;"),
    ],
)
def test_an_unclosed_entity_is_reported_at_the_end_of_its_sentence(tmp_path: Path, tags: str, message: str) -> None:
    lines = [f"{word} {tag}\n" for word, tag in zip("abcd", tags.split(), strict=False)]
    _, messages = read(tmp_path / "a.txt", "".join(lines) + ("\ne S-X\n" if "-" in tags else "\ne S\n"))
    assert re.search(message, messages[-1])


@pytest.mark.parametrize("scheme", ["auto", "BIO", "BIOES"])
@pytest.mark.parametrize("odd", ["X-PER", "0", "B-", "b-per"])
def test_one_odd_tag_among_those_of_entities_is_named(tmp_path: Path, odd: str, scheme: str) -> None:
    text = "a B-PER\nb I-PER\nc O\n\n" * 2 + f"d B-LOC\ne {odd}\nf O\n"
    with pytest.raises(KeelError, match=rf"a\.txt:10: '{odd}' is not a BIO tag, though most others are: correct it"):
        read(tmp_path / "a.txt", text, scheme=scheme)


@pytest.mark.parametrize("scheme", ["auto", "BIOES"])
@pytest.mark.parametrize(
    ("tags", "odd"),
    [("S-PER B-LOC E-LOC", "S-PER"), ("B-LOC E-LOC O", "E-LOC"), ("B-LOC M-LOC O", "M-LOC"), ("O L-LOC O", "L-LOC")],
)
def test_one_sentence_of_another_scheme_is_named(tmp_path: Path, tags: str, odd: str, scheme: str) -> None:
    foreign = "".join(f"w{number} {tag}\n" for number, tag in enumerate(tags.split()))
    line = 61 + tags.split().index(odd)
    for good in ("a B-PER\nb I-PER\nc O\nd B-LOC\ne O\n\n", "a I-PER\nb I-PER\nc O\nd I-LOC\ne O\n\n"):
        message = rf"a\.txt:{line}: '{odd}' is not a BIO tag, though most others are: correct it"
        with pytest.raises(KeelError, match=message):
            read(tmp_path / "a.txt", good * 10 + foreign, scheme=scheme)


def test_single_words_may_have_a_prefix_of_their_own(tmp_path: Path) -> None:
    text = "a B-PER\nb I-PER\nc O\n\n" * 10 + "d S-PER\ne O\n"  # BIOS, as some Chinese files have it
    examples, _ = read(tmp_path / "a.txt", text)
    assert word_tags(examples)[-2:] == [("a b c", "B-PER E-PER O"), ("d e", "S-PER O")]
    ends = "a B-PER\nb E-PER\nc S-LOC\n\n" * 4 + "a B-PER\nb I-PER\nc B-LOC\n"
    examples, messages = read(tmp_path / "a.txt", ends)
    assert word_tags(examples)[-1] == ("a b c", "B-PER E-PER S-LOC")
    assert "a.txt:19: 2 invalid tags in BIOES" in messages[1]


@pytest.mark.parametrize("tags", ["NN VV M CD M NN PU", "O O O O O O PERSON", "S V S A S PR S", "0 0 0 0 B-X 0"])
def test_plain_tags_stay_plain(tmp_path: Path, tags: str) -> None:
    text = "".join(f"w{number} {tag}\n" for number, tag in enumerate(tags.split())) + "\n"
    examples, _ = read(tmp_path / "a.txt", text * 3)
    assert examples.names == tuple(sorted({*tags.split()}))
    first = next(number for number, tag in enumerate(tags.split(), 1) if tag not in "OMS")
    with pytest.raises(KeelError, match=rf"a\.txt:{first}: .* leave out scheme"):
        read(tmp_path / "a.txt", text * 3, scheme="BIO")


@pytest.mark.parametrize(
    ("tags", "wanted", "prefixes"),
    [
        ("U-A O B-A I-A L-A", "S-A O B-A I-A E-A", r"BIOES with other prefixes \(L, U\), converted to BIOES"),
        ("W-A O B-A M-A E-A", "S-A O B-A M-A E-A", r"BMES with other prefixes \(W\), converted to BMES"),
        ("B I L O U", "B I E O S", r"BIOES with other prefixes \(L, U\)"),
        ("B-A I-A E-A M-A O", "B-A M-A E-A S-A O", r"BMES with other prefixes \(I\)"),
    ],
)
def test_schemes_with_other_prefixes_are_converted(tmp_path: Path, tags: str, wanted: str, prefixes: str) -> None:
    lines = "".join(f"w{number} {tag}\n" for number, tag in enumerate(tags.split()))
    examples, messages = read(tmp_path / "a.txt", lines + "\nx O\n")
    assert word_tags(examples) == [("w0 w1 w2 w3 w4", wanted), ("x", "O")]
    assert {name for example in examples for name in example.names} <= {*examples.names}
    assert re.search(prefixes, messages[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a O\nb\nc O\n\nd O\n",
            r"a\.txt:2: this line has 1 column, but others have 2 \('b'\): add the tag of the word",
        ),
        ("a\tO\n\tO\nc\tO\n\nd\tO\n", r"a\.txt:2: .* 1 column, but"),
        ("a O\nb O\nc O x\n\nd O\n", r"a\.txt:3: this line has 3 columns, but others have 2"),
        (
            "a O\nb B-X\nEU B-ORG call O\n" * 2 + "\nc O\n",
            r"a\.txt:3: this line has 4 columns, but others have 2 .*: put each word on its own line",
        ),
        ("a DT\nb NN\nc NN d DT\n\n" * 3, r"a\.txt:3: this line has 4 columns, but others have 2"),
        ("a DT O\nb NN B-X c O\nf NN O\n", r"a\.txt:2: this line has 5 columns, but others have 3"),
        (
            "中 B\n国 E\n\u3000\n人 S\n\n我 S\n",
            r"a\.txt:3: this line has 1 column.* \('\\u3000'\): add the tag of the word",
        ),
        ("\n \n", r"has no sentences"),
    ],
)
def test_lines_that_are_not_like_the_others_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(KeelError, match=message):
        read(tmp_path / "a.txt", text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sentence\tlabel\nit 's a charming journey\t1\nunflinchingly bleak and desperate\t0\ngood\t1\n", True),
        ("label\ttext_a\n1\t选择珠江花园的原因就是方便\n0\t房间太小,其他的都一般,早餐也不好\n", True),
        ("gj04\t1\t\tOur friends won't buy it.\ngj04\t0\t*\tThey drank the pub.\n", False),
    ],
)
def test_labelled_texts_are_no_tagged_words(tmp_path: Path, text: str, named: bool) -> None:
    names = f" (columns {', '.join(text.split(chr(10))[0].split())})" if named else ""
    message = f"a.tsv looks like labelled texts{names}, and task='tag' needs tagged words"
    with pytest.raises(KeelError, match=re.escape(message)):
        read(tmp_path / "a.tsv", text)


def test_short_lines_of_tokenized_text_are_text(tmp_path: Path) -> None:
    text = "Yes .\nNo .\n\nI do n't know .\nWhy ?\nBecause it is so .\n" * 2
    assert read(tmp_path / "a.txt", text)[0].kind is None


def test_a_few_lines_of_entities_are_columns(tmp_path: Path) -> None:
    assert word_tags(read(tmp_path / "a.txt", "John B-PER\nSmith I-PER\n")[0]) == [("John Smith", "B-PER I-PER")]


def test_one_column_has_no_tags_to_learn(tmp_path: Path) -> None:
    examples, _ = read(tmp_path / "a.txt", "EU\nrejects\n\nPeter\n")
    assert [example.words for example in examples] == [("EU", "rejects"), ("Peter",)]
    with pytest.raises(KeelError, match=r"a\.txt has words without tags"):
        _ = examples.labels


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([([], [])], "item 0 of the list: this sentence is empty: drop it"),
        ([(["a"], ["O"]), (["a", "b"], ["O"])], "item 1 of the list: it has 2 words but 1 tag: give"),
        ([(["a", ""], ["O", "O"])], "item 0 of the list: word 2 is empty"),
        ([(["a"], [None])], "item 0 of the list: tag 1 is empty"),
        ([(["a"], ["O"]), ["b"]], "item 1 of the list: this sentence has no tags, though others have"),
        ([{"words": "a b", "tags": ["O"]}], "words and tags must be lists"),
        ([{"tags": "O B", "words": ["a", "b", "c"]}], "item 0 of the list: words and tags must be lists"),
        ([{"words": ["a", "b", "c"], "tags": "O B"}], "item 0 of the list: words and tags must be lists"),
        ([{"text": ["a"], "tags": ["O"]}], "has no column of words"),
        ([7], "give a text, words, or"),
    ],
)
def test_bad_lists_are_refused(items: list[Any], message: str) -> None:
    with pytest.raises(KeelError, match=message):
        read_tagged_sentences(items)


def test_suspicious_sentences_are_reported(tmp_path: Path) -> None:
    glued = "a O\n\nb O\nc O\n\n" + "d B-X\n" * 300
    _, messages = read(tmp_path / "a.txt", glued)
    assert any(re.search(r"a\.txt:6: a sentence of 300 words .* is a blank line .* missing", each) for each in messages)
    _, messages = read(tmp_path / "a.txt", f"a O\n{'x' * 5000} O\n\nb O\n")
    assert any(
        re.search(r"a\.txt:2: a word of 5,000 characters \(1 such word\).* is a separator missing", each)
        for each in messages
    )
    _, messages = read(tmp_path / "a.txt", f"He said it.\nShe said {'x' * 5000} too.\n", format="text")
    assert any(re.search(r"a\.txt:2: a word of 5,000 characters .* is a separator missing", each) for each in messages)
    _, messages = read(tmp_path / "a.txt", f"He saw {'Paris,Rome,' * 200}all.\n", format="text")  # which are words
    assert not any("characters" in each for each in messages)


def test_two_joined_sentences_are_reported(tmp_path: Path) -> None:
    glued = "EU B-ORG\nrejects O\n. O\nPeter B-PER\nran O\n. O\n\n"
    _, messages = read(tmp_path / "a.conll", glued * 2 + "He O\nran O\n. O\n")
    assert any(
        re.search(r"a\.conll:3: 2 of 3 sentences have words after a full stop.* blank line missing", e)
        for e in messages
    )
    _, messages = read(tmp_path / "a.conll", glued)
    assert any("a.conll:3: 1 of 1 sentence has words after a full stop" in each for each in messages)
    separated = glued.replace("Peter", "\nPeter")
    named = "He O\nmet O\nMr O\n. O\nBlair B-PER\n. O\n\n"
    for clean in (separated, named, glued.replace("Peter", "peter"), glued + separated * 1000):
        _, messages = read(tmp_path / "a.conll", clean)
        assert not any("after a full stop" in each for each in messages)


@pytest.mark.data
def test_published_files_are_read_whole(data_dir: Path) -> None:
    tasks = data_dir / "tasks"
    expected = {
        "conll2003/eng.testb.xz": (3453, 9),
        "ud_english_ewt/en_ewt-ud-test.conllu.xz": (2077, 17),
        "zh/msra_ner_split/dev.txt.xz": (4631, 7),
        "zh/icwb2/gold/pku_test_gold.utf8.xz": (1944, 4),
        "atis_snips/atis/dev/seq.in": (500, 135),
    }
    for name, (sentences, tags) in expected.items():
        examples = read_tagged_sentences(tasks / name)
        assert (len(examples), len(examples.names)) == (sentences, tags), name
