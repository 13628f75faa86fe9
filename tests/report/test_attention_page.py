"""The attention page: small enough for long texts, true to its weights, and safe for any text."""

import base64
import hashlib
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from keel.api.inspection import write_attention
from keel.errors import KeelError
from keel.explain.attention_weights import Attention
from keel.report import attention_page
from keel.report.attention_charts import thumbnail
from keel.report.png_images import png_image


def softmax(scores: np.ndarray) -> np.ndarray:
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return (shares / shares.sum(-1, keepdims=True)).astype(np.float32)


def attention(layers: int, heads: int, tokens: list[str], spread: float = 2.0) -> Attention:
    count = len(tokens)
    scores = spread * np.random.default_rng(0).standard_normal((layers, heads, count, count), np.float32)
    numbers = [*range(1, layers + 1)], [*range(1, heads + 1)]
    return Attention("m", "encoder", tokens, tokens, *numbers, softmax(scores), softmax(scores[0, 0]), [count - 1])


def stored_weights(html: str) -> tuple[list[list[float]], list[np.ndarray]]:
    """The numbers and the decoded weights of each head, as the script reads them."""
    found = re.search(r'<script type="application/json" id="weights">(.*?)</script>', html)
    assert found
    heads = json.loads(found[1])["weights"]
    matrices = [
        largest * (np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8) / 255) ** power
        for largest, power, _, _, text in heads
    ]
    return [head[:4] for head in heads], matrices


def test_short_texts_are_exact_to_eight_bits(tmp_path: Path) -> None:
    found = attention(2, 3, ["[CLS]", *"abcdefgh", "[SEP]"])
    html = write_attention(tmp_path / "a.html", found).read_text(encoding="utf-8")
    facts, matrices = stored_weights(html)
    for (_, _, threshold, error), matrix, exact in zip(facts, matrices, found.weights.reshape(6, -1), strict=True):
        assert np.abs(matrix - exact).max() <= error * 1.001 < 0.004
        assert threshold < 1e-4
    assert "8 bits" in html
    assert html.count("<img") == 6


def check_stored(html: str, weights: np.ndarray) -> None:
    """Stored weights are exact to the error of their head, all others below its threshold."""
    facts, matrices = stored_weights(html)
    for (_, _, threshold, error), matrix, exact in zip(facts, matrices, weights.reshape(len(facts), -1), strict=True):
        kept = matrix > 0
        assert np.abs(matrix - exact)[kept].max() <= error * 1.001
        assert exact[~kept].max(initial=0) <= threshold * 1.001


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_the_largest_weights_of_long_texts_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spread: float
) -> None:
    found = attention(2, 2, [f"word{number}" for number in range(512)], spread)
    monkeypatch.setattr(attention_page, "MAX_BYTES", attention_page.MAX_BYTES * 4 // 144)
    path = write_attention(tmp_path / "a.html", found)
    assert path.stat().st_size < 250_000
    check_stored(path.read_text(encoding="utf-8"), found.weights)


@pytest.mark.slow
def test_long_texts_stay_below_five_megabytes(tmp_path: Path) -> None:
    found = attention(12, 12, [f"word{number}" for number in range(512)], 1.0)
    path = write_attention(tmp_path / "a.html", found)
    assert path.stat().st_size < 5_000_000
    check_stored(path.read_text(encoding="utf-8"), found.weights)
    assert write_attention(tmp_path / "a.svg", found).stat().st_size < 1_500_000


def test_what_fits_no_page_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_page, "MAX_BYTES", 50)
    with pytest.raises(KeelError, match="layer"):
        write_attention(tmp_path / "a.html", attention(3, 3, [*"abcdefgh"]))


class Reader(HTMLParser):
    def __init__(self, html: str):
        super().__init__()
        self.scripts, self.words, self.policy, self.inside = [], "", "", ""
        self.sources: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.inside = tag if tag == "script" and not given.get("type") else ""
        self.policy = given.get("content") or "" if given.get("http-equiv") else self.policy
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts.append(data)
            self.inside = ""
        else:
            self.words += data


def test_the_page_runs_its_own_script_only_and_loads_nothing(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    found = attention(1, 2, [evil, "b", "[SEP]"])
    page = Reader(write_attention(tmp_path / "a.html", found).read_text(encoding="utf-8"))
    assert len(page.scripts) == 1
    assert evil in page.words
    hashed = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
    assert "default-src 'none'" in page.policy
    assert f"script-src 'sha256-{hashed}'" in page.policy
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert "http://" not in page.scripts[0]
    assert "https://" not in page.scripts[0]


def test_svg_of_one_head_has_selectable_text_and_tooltips(tmp_path: Path) -> None:
    few = attention(1, 1, ["[CLS]", "a<b", "[SEP]"])
    svg = write_attention(tmp_path / "a.svg", few).read_text(encoding="utf-8")
    assert f"<title>a&lt;b - [CLS]: {few.weights[0, 0, 1, 0]:.3f}</title>" in svg
    many = attention(1, 1, [f"word{number}" for number in range(100)])
    svg = write_attention(tmp_path / "b.svg", many).read_text(encoding="utf-8")
    assert svg.count(">word99<") == 2
    assert svg.count("<image") == 1


def test_svg_of_two_words_has_a_number_per_head(tmp_path: Path) -> None:
    found = attention(2, 3, ["a", "b", "[SEP]"])
    named = Attention(**{**vars(found), "from_word": "a", "from_positions": [0], "to_word": "b", "to_positions": [1]})
    svg = write_attention(tmp_path / "a.svg", named).read_text(encoding="utf-8")
    for row in named.weights[:, :, 0, 1]:
        for share in row:
            assert f">{100 * share:.0f}</text>" in svg
    assert named.between() == pytest.approx(found.weights[:, :, 0, 1])


@pytest.mark.parametrize("direction", ["from", "to"])
def test_svg_of_one_word_has_a_line_per_token_that_counts(direction: str, tmp_path: Path) -> None:
    found = attention(1, 2, ["[CLS]", "a", "b", "[SEP]"])
    found.weights[:] = 0.25
    found.weights[0, :, 2, 1] = found.weights[0, :, 1, 2] = 1e-4  # below a hundredth of the largest: no line
    named = replace(found, **{f"{direction}_word": "b", f"{direction}_positions": [2]})
    svg = ElementTree.fromstring(write_attention(tmp_path / "a.svg", named).read_text(encoding="utf-8"))
    lines = list(svg.iter("{http://www.w3.org/2000/svg}line"))
    assert len({line.get("y1" if direction == "from" else "y2") for line in lines}) == 1
    names = {line.findtext("{http://www.w3.org/2000/svg}title") for line in lines}
    assert names == {
        f"b - {key}: 0.250" if direction == "from" else f"{key} - b: 0.250" for key in ("[CLS]", "b", "[SEP]")
    }
    assert f"{direction} 'b', mean of 2 heads" in svg.findtext("{http://www.w3.org/2000/svg}title", "")


def test_images_are_png_files() -> None:
    values = np.array([[0.0, 1.0, 0.5]])
    data = base64.b64decode(png_image(values).partition(",")[2])
    assert data.startswith(b"\x89PNG")
    start = data.index(b"IDAT")
    size = int.from_bytes(data[start - 4 : start])
    assert list(zlib.decompress(data[start + 4 : start + 4 + size])) == [0, 0, 31, 16]
    assert zlib.crc32(data[start : start + 4 + size]) == int.from_bytes(data[start + 4 + size : start + 8 + size])


def test_a_thumbnail_keeps_the_largest_weight_of_a_block() -> None:
    weights = np.zeros((500, 500), np.float32)
    weights[123, 456] = 1
    data = base64.b64decode(thumbnail(weights).partition(",")[2])
    start = data.index(b"IDAT")
    size = int.from_bytes(data[start - 4 : start])
    assert zlib.decompress(data[start + 4 : start + 4 + size]).count(31) == 1
