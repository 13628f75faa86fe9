"""The page of many points: exact to its promise, small, safe for any text, and usable in a browser."""

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser

from keel.report import point_map_page as page_module
from keel.report.point_map_page import PointMap, pack_points, point_map_page


def stored(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="facts">(.*?)</script>', html)
    assert found
    facts = json.loads(found[1])
    facts["names"] = zlib.decompress(base64.b64decode(facts["names"])).decode().split("\n")
    points = np.frombuffer(zlib.decompress(base64.b64decode(facts["points"])), "<u2").reshape(-1, 2)
    return {**facts, "points": points}


def test_positions_are_exact_to_sixteen_bits() -> None:
    points = np.random.default_rng(0).normal(size=(500, 2)) * [3, 1]
    size = (points.max(0) - points.min(0)).max()
    packed = pack_points(points)
    assert packed.max() == 65_535
    assert packed.min() == 0
    assert np.abs(packed * (size / 65_535) + points.min(0) - points).max() <= size / 65_535 / 2 * 1.001
    assert (pack_points(np.ones((3, 2))) == 0).all()


def test_the_page_holds_all_words_in_order_and_no_markup_of_theirs() -> None:
    names = ["<script>alert(1)</script>", "皇帝", "two\nlines", " "]
    groups = np.array([0, 1, 1, 0])
    shown = PointMap(names=names, points=np.eye(4)[:, :2], groups=groups, clusters=["<b>, x", "</script>"])
    html = point_map_page("A map", "4 words.", shown).render()
    facts = stored(html)
    assert facts["names"] == ["<script>alert(1)</script>", "皇帝", "two lines", "␣"]
    assert facts["clusters"] == ["<b>, x", "</script>"]
    assert html.count("<script") == html.count("</script>") == 2
    assert "&lt;b&gt;, x" in html
    assert not re.search(r"""(src|href)=["']?http|@import""", html)


def test_fifty_thousand_texts_fit_below_5_mb(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    alphabet = np.array([*"abcdefghijklmnopqrstuvwxyz "])
    names = ["".join(row) for row in random.choice(alphabet, (50_000, 130))]
    html = point_map_page(
        "Texts", "", PointMap(names=names, points=random.normal(size=(50_000, 2)), unit="text")
    ).render()
    assert len(html.encode()) < 5_000_000
    kept = stored(html)["names"]
    assert len(kept) == 50_000
    assert all(" ".join(name.split()).startswith(short[:-1]) for name, short in zip(names[:100], kept, strict=False))
    assert re.search(r"Texts are cut after (70|100) characters", html)
    monkeypatch.setattr(page_module, "MAX_BYTES", 1_000)
    with pytest.raises(ValueError, match="do not fit"):
        point_map_page("Texts", "", PointMap(names=names[:1_000], points=random.normal(size=(1_000, 2))))


@pytest.mark.browser
def test_search_zoom_and_clusters_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    names = ["guitar", *(f"word{number}" for number in range(3_000))]
    groups = np.arange(len(names)) % 2
    shown = PointMap(names=names, points=random.normal(size=(len(names), 2)), groups=groups, clusters=["one", "two"])
    path = point_map_page("A map", "3,001 words.", shown).write(tmp_path / "map.html")
    messages: list[str] = []
    page = browser.new_page(viewport={"width": 900, "height": 600})
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-shown='3001']")
    page.fill("#search", "guitar")
    page.press("#search", "Enter")
    page.wait_for_selector("#read b")
    assert page.inner_text("#read") == "guitar\none"
    page.wait_for_timeout(800)
    assert "point=1" in page.url
    assert page.evaluate("view.zoom") > 5
    packed = pack_points(shown.points)
    assert page.evaluate("[view.x, view.y]") == pytest.approx(packed[0], abs=1)
    page.click("#listed summary")
    page.wait_for_selector("#words li")
    assert "guitar" in page.inner_text("#words")
    page.click("[data-cluster='1']")
    assert page.get_attribute("[data-cluster='1']", "aria-pressed") == "true"
    page.wait_for_timeout(400)
    assert "guitar" not in page.inner_text("#words")
    address = page.url
    before = page.evaluate("view.x")
    page.mouse.move(300, 300)
    page.mouse.down()
    page.mouse.move(380, 300, steps=4)
    page.mouse.up()
    assert page.evaluate("view.x") < before
    page.click("[data-action='reset']")
    page.wait_for_timeout(600)
    assert page.evaluate("view.zoom") == pytest.approx(1)
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("body[data-shown]")
    assert page.evaluate("[selected, chosen]") == [0, 1]
    page.close()
    assert messages == []
