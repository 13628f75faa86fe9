"""The pages in a real browser: what they do, and that they keep to this machine, the policy and the contrast."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Browser, Page, Route, expect

import keel

pytestmark = pytest.mark.browser

AXE = Path(__file__).parents[2] / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
SCREENSHOTS = os.environ.get("KEEL_SCREENSHOTS")
"""Folder for a picture of every view."""
WAIT = 60_000
"""Milliseconds; a model is loaded on the first request."""
BERT, CLASSIFIER, GPT, WORDS = (f"project/models/{name}" for name in ("bert", "classifier", "gpt", "words"))
PAIRS = "学而时习之，不亦说乎？\t学了知识按时温习，不也很愉快吗？\n己所不欲，勿施于人。\t自己不想要的，不要强加给别人。"
HEADLINES = ("央行下调利率", "银行股上涨", "球队夺得冠军", "主场球队获胜", "冷空气南下", "台风将登陆")
TAGGED = "\n\n".join(f"{name}\t名\n很\t副\n{kind}\t形" for name, kind in zip("山水花鸟天", "高清红小蓝", strict=True))
USES = ("他在银行工作。", "银行提高了利率。", "行人走在路上。", "自行车停在路边。", "这样做不行。")
VIEWS = {
    "fill": ("/try/fill", {"model": "chinese", "text": "中国的首都是[MASK]京。"}),
    "generate": ("/try/generate", {"model": GPT, "text": "the old", "tokens": 4}),
    "beam search": ("/try/generate", {"model": GPT, "text": "the old", "method": "beam", "tokens": 4, "beams": 2}),
    "ask": ("/try/ask", {"model": GPT, "passage": "the film was good", "question": "what was good?"}),
    "predict": ("/try/predict", {"model": CLASSIFIER, "text": "a quiet garden"}),
    "next": ("/try/next", {"model": BERT, "text": "the old film", "second": "was good"}),
    "nearest": ("/words/nearest", {"model": WORDS, "text": "film"}),
    "analogy": ("/words/analogy", {"model": WORDS, "text": "film - good + old"}),
    "similarity": ("/words/similarity", {"model": "chinese", "text": "今天天气很好。", "second": "今天天气不错。"}),
    "senses": ("/words/senses", {"model": "chinese", "text": "行", "sentences": "\n".join(USES)}),
    "map": ("/words/map", {"model": WORDS, "top": 5, "word": "film"}),
    "attention": ("/attention", {"model": "chinese", "text": "今天天气很好", "layer": 3, "head": 2}),
    "two words": (
        "/attention",
        {"model": BERT, "text": "the film", "from_word": "the", "to_word": "film", "show": "between"},
    ),
    "layers": ("/layers/mix", {"models": CLASSIFIER}),
    "probes": ("/layers/probes", {"model": BERT, "content": TAGGED, "control": "yes", "random": "yes"}),
    "retrieval": ("/layers/retrieval", {"model": "chinese", "content": PAIRS, "center": "yes"}),
    "explain": ("/explain", {"model": CLASSIFIER, "text": "the old film was good", "curves": "yes"}),
    "trace": ("/trace", {"model": "chinese", "text": "中国的首都是[MASK]京。", "tensor": 14}),
    "decoding": ("/trace", {"model": GPT, "text": "the old", "step": 2}),
    "bias": ("/bias", {"model": "chinese", "occupations": "护士\n医生\n法官"}),
    "bias in words": ("/bias", {"model": "english-words"}),
    "figures": ("/figures", {}),
    "figure": ("/figures/block", {"model": "chinese"}),
    "input": ("/figures/input", {"model": "chinese", "text": "今天天气很好", "second": "明天下雨"}),
    "runs": ("/runs", {"ids": BERT}),
    "compare": ("/compare", {"id": "project/report"}),
    "claims": ("/claims", {"number": 25}),
    "check": ("/data/check", {"file": "project/train.tsv"}),
    "clusters": ("/data/clusters", {"model": "chinese", "content": "\n".join(HEADLINES), "cluster": 1, "point": 2}),
    "errors": ("/data/errors", {"model": CLASSIFIER, "file": "project/test.tsv"}),
}
"""Views with their inputs."""


@pytest.fixture(scope="session")
def address(project: Path) -> Iterator[str]:
    """Address of a studio with its token."""
    command = [sys.executable, "-m", "keel", "studio", str(project), "--no-browser", "--port", "0", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(keel.__file__).parents[1])}
    with subprocess.Popen([*command, "--device", "cpu"], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"]
        process.terminate()


@dataclass
class Visit:
    """A page that is watched: requests to elsewhere are stopped, and all problems are kept."""

    page: Page
    address: str
    problems: list[str] = field(default_factory=list)

    def watch(self) -> None:
        own = urlsplit(self.address).netloc

        def check(route: Route) -> None:
            url = urlsplit(route.request.url)
            if url.netloc == own or url.scheme in ("data", "blob"):
                route.continue_()
            else:
                self.problems.append(f"request to {route.request.url}")
                route.abort()

        self.page.route("**/*", check)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda each: self.problems.append(each.text) if each.type == "error" else None)

    def open(self, path: str, **query: object) -> None:
        """Open a view and wait for its answer."""
        self.page.goto(path + (f"?{urlencode(query, quote_via=quote)}" if query else ""))
        expect(self.page.locator("h1")).to_be_visible()
        expect(
            self.page.locator("main :is(option, pre, input[type=checkbox], ul button, ul svg, figure, section)").first
        ).to_be_attached(timeout=WAIT)
        expect(self.page.locator("[aria-busy=true]")).to_have_count(0, timeout=WAIT)

    def check_accessibility(self) -> None:
        """Note what axe finds: contrast, names, roles."""
        if not AXE.is_file():
            return
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        for each in found["violations"]:
            self.problems.append(f"{self.page.url}: {each['id']}: {[node['html'] for node in each['nodes']]}")


@contextmanager
def visit(
    browser: Browser, address: str, language: str = "en", *, theme: str = "light", width: int = 1280
) -> Iterator[Visit]:
    """A new visitor's page; at the end there must have been no problem."""
    parts = urlsplit(address)
    context = browser.new_context(
        base_url=f"{parts.scheme}://{parts.netloc}",
        color_scheme="dark" if theme == "dark" else "light",
        viewport={"width": width, "height": 800},
    )
    found = Visit(context.new_page(), address)
    found.watch()
    found.page.goto(f"{address}&lang={language}")
    yield found
    context.close()
    assert found.problems == []


def test_masks_are_filled_and_the_address_restores_it(browser: Browser, address: str) -> None:
    with visit(browser, address) as found:
        page = found.page
        page.get_by_label("Text").fill("中国的首都是[MASK]京。")
        page.get_by_label("Model").select_option("chinese", timeout=WAIT)
        page.get_by_label("Candidates").fill("3")
        page.get_by_role("button", name="Fill in").click()
        expect(page.locator("mark")).not_to_be_empty(timeout=WAIT)
        word = page.locator("mark").inner_text()
        shown = page.get_by_role("img").get_attribute("aria-label")
        assert shown is not None
        assert f"Mask 1: {word} " in shown
        assert shown.count("%") == 3
        found.check_accessibility()
        page.goto(page.url)
        expect(page.get_by_label("Text")).to_have_value("中国的首都是[MASK]京。")
        expect(page.locator("mark")).to_have_text(word, timeout=WAIT)


def test_every_page_loads_in_both_languages(browser: Browser, address: str) -> None:
    for language in ("en", "zh"):
        with visit(browser, address, language) as found:
            pages = found.page.locator("#pages a")
            names = pages.all_inner_texts()
            assert len(names) >= 1
            for name in names:
                pages.get_by_text(name, exact=True).click()
                expect(found.page.locator("main h1")).to_have_text(name)


def test_an_unknown_page_has_a_heading(browser: Browser, address: str) -> None:
    with visit(browser, address, "zh") as found:
        found.page.goto("/nowhere")
        expect(found.page.locator("main h1")).to_have_text("找不到页面")
        expect(found.page.get_by_role("alert")).to_be_visible()
        found.check_accessibility()


def test_names_of_tensors_are_chinese(browser: Browser, address: str) -> None:
    with visit(browser, address, "zh") as found:
        found.open("/trace", model=BERT, text="the old film", tensor=8)
        expect(found.page.locator("main nav button[aria-current]")).to_contain_text("键")
        expect(found.page.locator("main dl").first).to_contain_text("注意力头 2")


def test_labels_and_texts_are_shown_as_text(browser: Browser, address: str) -> None:
    with visit(browser, address) as found:
        text = "<img src=x onerror=alert(1)> <script>alert(1)</script> 好[MASK]"
        found.open("/try/fill", model="chinese", text=text)
        assert "<script>alert(1)</script>" in found.page.locator("main").inner_text()
        assert found.page.locator("main img").count() == 0


def test_an_error_is_the_servers_sentence(browser: Browser, address: str) -> None:
    with visit(browser, address) as found:
        found.open("/try/fill", model="chinese", text="no mask")
        expect(found.page.get_by_role("alert")).to_contain_text("[MASK]")
        assert len(found.problems) == 1  # the browser's own line about the status 400
        found.problems.clear()


@pytest.mark.parametrize(
    ("language", "top", "expected"),
    [("en", 0, "“Neighbours” must be 1 or more"), ("zh", 2000, "“近邻数”不能大于 1,000")],
)
def test_an_invalid_input_is_named_by_its_label(
    browser: Browser, address: str, language: str, top: int, expected: str
) -> None:
    with visit(browser, address, language) as found:
        found.open("/words/nearest", model=WORDS, text="film", top=top)
        expect(found.page.get_by_role("alert")).to_have_text(expected)
        found.problems.clear()  # the browser's own line about the status 422


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theme", "language", "width"),
    [("light", "en", 1280), ("dark", "zh", 1280), ("dark", "en", 390), ("light", "zh", 390)],
)
def test_every_view_answers_without_a_problem(
    browser: Browser, address: str, theme: str, language: str, width: int
) -> None:
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: run npm ci in frontend/")
    with visit(browser, address, language, theme=theme, width=width) as found:
        for name, (path, query) in VIEWS.items():
            found.open(path, **query)
            expect(found.page.locator("main :is([aria-live] section, ul a svg g)").first).to_be_visible()
            found.check_accessibility()
            if SCREENSHOTS:
                path = Path(SCREENSHOTS) / f"{name.replace(' ', '-')}-{theme}-{language}-{width}.png"
                found.page.screenshot(path=path, full_page=True)
            beyond = found.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert beyond <= 0, f"{name} is {beyond} pixels wider than the window"


@pytest.mark.slow
def test_figures_are_saved_as_files_that_stand_alone(browser: Browser, address: str) -> None:
    with visit(browser, address, theme="dark") as found:
        path, query = VIEWS["fill"]
        found.open(path, **query)
        files: dict[str, bytes] = {}
        for kind in ("SVG", "PNG", "JSON"):
            with found.page.expect_download() as download:
                found.page.get_by_role("button", name=f"Save as {kind}").click()
            files[kind] = Path(download.value.path()).read_bytes()
        parsed = ElementTree.fromstring(files["SVG"])
        texts = list(parsed.iter("{http://www.w3.org/2000/svg}text"))
        assert texts
        colours = [re.findall(r"\d+", each.get("fill", "")) for each in texts]
        assert all(sum(map(int, colour)) < 300 for colour in colours if colour)
        assert any(colours)
        assert all(each.get("class") is None for each in parsed.iter())
        assert parsed.find("{http://www.w3.org/2000/svg}rect").get("fill") == "#ffffff"  # pyright: ignore[reportOptionalMemberAccess]
        assert files["PNG"].startswith(b"\x89PNG")
        assert json.loads(files["JSON"])["masks"][0][0]["word"] in "".join(filter(None, (each.text for each in texts)))


@pytest.mark.slow
def test_back_and_forward_restore_views(browser: Browser, address: str) -> None:
    with visit(browser, address) as found:
        page = found.page
        found.open("/try/fill", model="chinese", text="天[MASK]")
        page.get_by_label("Text").fill("地[MASK]")
        page.keyboard.press("Control+Enter")
        expect(page.locator("main [aria-live]")).to_contain_text("地", timeout=WAIT)
        page.get_by_role("link", name="Next sentence").click()
        expect(page.get_by_label("Second text")).to_be_visible()
        page.go_back()
        expect(page.get_by_label("Text")).to_have_value("地[MASK]")
        page.go_back()
        expect(page.get_by_label("Text")).to_have_value("天[MASK]")


@pytest.mark.slow
def test_the_tree_of_candidates_answers_to_the_keyboard(browser: Browser, address: str) -> None:
    with visit(browser, address) as found:
        path, query = VIEWS["beam search"]
        found.open(path, **query)
        nodes = found.page.locator("svg g[role=button]")
        assert nodes.count() >= 4
        found.page.locator("svg g[tabindex='0']").focus()
        before = found.page.locator("svg g[aria-pressed=true]").get_attribute("aria-label")
        found.page.keyboard.press("ArrowRight")
        assert found.page.locator("svg g[aria-pressed=true]").count() == 1
        assert found.page.locator("svg g[aria-pressed=true]").get_attribute("aria-label") != before


def test_arrow_keys_work_as_soon_as_a_trace_is_shown(browser: Browser, address: str) -> None:
    with visit(browser, address) as found:
        page = found.page
        found.open("/trace", model=BERT, text="the old film")
        chosen = page.locator("button[aria-current=true]")
        first = chosen.inner_text()
        page.keyboard.press("ArrowRight")
        expect(chosen).not_to_have_text(first)
        assert "tensor=1" in page.url
        page.get_by_label("Text", exact=True).focus()
        page.keyboard.press("ArrowLeft")
        assert "tensor=1" in page.url


@pytest.mark.slow
def test_the_map_finds_a_word_and_saves_what_it_shows(browser: Browser, address: str) -> None:
    with visit(browser, address, theme="dark") as found:
        path, query = VIEWS["map"]
        found.open(path, **(query | {"word": ""}))
        page, canvas = found.page, found.page.locator("canvas")
        before = canvas.evaluate("each => each.toDataURL()")
        page.get_by_label("Search a word").fill("fil")
        page.get_by_role("button", name="film").click()
        assert page.url.endswith("word=film")
        assert canvas.evaluate("each => each.toDataURL()") != before
        near = canvas.evaluate("each => each.toDataURL()")
        page.get_by_role("button", name="Show all").click()
        assert canvas.evaluate("each => each.toDataURL()") != near
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as PNG").click()
        assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as JSON").click()
        words = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))["words"]
        assert "film" in {each["word"] for each in words}


@pytest.mark.slow
def test_a_cluster_is_highlighted_by_the_keyboard_and_restored(browser: Browser, address: str) -> None:
    with visit(browser, address) as found:
        path, query = VIEWS["clusters"]
        found.open(path, **(query | {"cluster": 0, "point": -1}))
        page, canvas = found.page, found.page.locator("canvas")
        before = canvas.evaluate("each => each.toDataURL()")
        first = page.locator("main li button[aria-pressed]").first
        first.focus()
        page.keyboard.press("Enter")
        expect(first).to_have_attribute("aria-pressed", "true")
        assert "cluster=1" in page.url
        assert canvas.evaluate("each => each.toDataURL()") != before
        page.get_by_label("Search a text").fill(HEADLINES[4])
        page.keyboard.press("Enter")
        assert "point=4" in page.url
        page.goto(page.url)
        expect(first).to_have_attribute("aria-pressed", "true", timeout=WAIT)
        expect(page.locator("main section p").filter(has_text=HEADLINES[4]).first).to_be_visible()


@pytest.mark.slow
def test_a_figure_of_the_gallery_is_saved_as_svg(browser: Browser, address: str) -> None:
    with visit(browser, address, theme="dark") as found:
        page = found.page
        found.open("/figures")
        page.get_by_role("link", name="Sizes of networks").click()
        expect(page.get_by_role("img")).to_be_visible(timeout=WAIT)
        page.get_by_label("Model").select_option("chinese")
        page.get_by_role("button", name="Draw").click()
        expect(page.get_by_role("img")).to_contain_text("chinese", timeout=WAIT)
        assert "model=chinese" in page.url
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as SVG").click()
        parsed = ElementTree.fromstring(Path(download.value.path()).read_bytes())
        texts = ["".join(each.itertext()) for each in parsed.iter("{http://www.w3.org/2000/svg}text")]
        assert {"chinese", "BERT-base"} <= {*texts}
        assert all(each.get("class") is None for each in parsed.iter())


@pytest.mark.slow
def test_examples_work_on_the_bundled_models(browser: Browser, address: str) -> None:
    with visit(browser, address, "zh") as found:
        for path in ("/layers/probes", "/layers/retrieval", "/data/clusters", "/bias"):
            found.open(path)
            found.page.get_by_label("模型").select_option("chinese", timeout=WAIT)
            found.page.locator("button.example").first.click()
            expect(found.page.locator("main [aria-live] section").first).to_be_visible(timeout=WAIT)
            assert found.page.get_by_role("alert").count() == 0
