"""Fixtures of all tests: real data where available, small generated corpora, one thread, no network."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parent.parent

# Set before torch, numba or transformers are imported, and inherited by every process that a test starts.
os.environ.update(
    OMP_NUM_THREADS="1",
    HF_HUB_OFFLINE="1",
    KEEL_LANG="en",
    KEEL_DATA=str((ROOT / os.environ.get("KEEL_DATA", "../shared/data")).resolve()),
)
if not Path("/dev/nvidiactl").exists():  # the kernels then run on the CPU, as Python
    os.environ["TRITON_INTERPRET"] = "1"
KEEL_DATA = Path(os.environ["KEEL_DATA"])

NO_DATA = f"no data in {KEEL_DATA}"


def pytest_itemcollected(item: pytest.Item) -> None:
    if "data_dir" in getattr(item, "fixturenames", ()):
        item.add_marker("data")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("data") and not KEEL_DATA.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"{NO_DATA}: set KEEL_DATA", pytrace=False)
        pytest.skip(NO_DATA)
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NO_DATA in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests skipped: {NO_DATA} (set KEEL_DATA)")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data; a test that uses this fixture is marked `data`."""
    return KEEL_DATA


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """Chromium, once for all tests of a process: Playwright's synchronous API starts only once at a time."""
    sync_api = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("Chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture(scope="session", autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of this session, so that no test reads the cache of an earlier run."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEEL_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def english_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file of 300 English documents of 3 to 8 sentences, a blank line between documents."""
    return _write_corpus(tmp_path_factory.mktemp("corpus") / "english.txt", ENGLISH, joint=" ")


@pytest.fixture(scope="session")
def chinese_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file of 300 Chinese documents of 3 to 8 sentences, a blank line between documents."""
    return _write_corpus(tmp_path_factory.mktemp("corpus") / "chinese.txt", CHINESE, joint="")


@pytest.fixture(scope="session")
def write_elmo() -> Callable[[Path], None]:
    """Write a folder in AllenNLP's format of ELMo, with random weights."""

    def write(folder: Path) -> None:
        import h5py
        import numpy as np

        lstm = {"use_skip_connections": True, "projection_dim": 4, "cell_clip": 3, "proj_clip": 3, "dim": 6}
        char_cnn = {"activation": "relu", "filters": [[1, 3], [2, 5]], "n_highway": 1, "embedding": {"dim": 2}}
        char_cnn |= {"n_characters": 262, "max_characters_per_token": 50}
        shapes = {"char_embed": (261, 2), "CNN_proj/W_proj": (8, 4), "CNN_proj/b_proj": (4,)}
        shapes |= {"CNN/W_cnn_0": (1, 1, 2, 3), "CNN/b_cnn_0": (3,), "CNN/W_cnn_1": (1, 2, 2, 5), "CNN/b_cnn_1": (5,)}
        for kind in ("carry", "transform"):
            shapes |= {f"CNN_high_0/W_{kind}": (8, 8), f"CNN_high_0/b_{kind}": (8,)}
        for cell in (f"RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell" for side in (0, 1) for layer in (0, 1)):
            shapes |= {f"{cell}/W_0": (8, 24), f"{cell}/B": (24,), f"{cell}/W_P_0": (6, 4)}
        folder.mkdir()
        options = {"lstm": {**lstm, "n_layers": 2}, "char_cnn": char_cnn}
        (folder / "tiny_options.json").write_text(json.dumps(options))
        numbers = np.random.default_rng(0)
        with h5py.File(folder / "tiny_weights.hdf5", "w") as file:
            for name, shape in shapes.items():
                file[name] = numbers.normal(size=shape).astype(np.float32)

    return write


@dataclass(frozen=True, kw_only=True)
class Grammar:
    sentences: list[str]
    words: dict[str, str]
    topics: list[tuple[str, str, str]]
    """(who, what, does): a document has one topic, so that words and sentences predict their neighbours."""


ENGLISH = Grammar(
    sentences=[
        "The {who} {does} the {what} {when}.",
        "{When}, the {who} {does} a {how} {what}.",
        'A {how} {what} is {worth}, says Dr. {name}: "The {who} {does} it {when}."',
        "Does the {who} know that {name}'s {what} is {how}?",
        "{name} paid {number} dollars for the {what}, but the {who} never {does} it!",
        "It isn't {worth}; the {how} {what} belongs to {name} and the {who}.",
    ],
    words={
        "when": "in the morning|before winter|every Monday|around noon|after the rain|twice a year",
        "how": "small|heavy|beautiful|forgotten|well-made|strange",
        "worth": "worth the trouble|hard to find|older than the town|what everyone wants",
        "name": "Anna|Peter|Mrs. Moore|Naïma|Chen|O'Brien",
    },
    topics=[
        ("sailor|captain|harbour pilot|fisherman", "boat|sail|anchor|net|keel", "repairs|paints|loses|hauls"),
        ("baker|cook|miller|waitress", "bread|cake|oven|soup|recipe", "tastes|serves|burns|warms"),
        ("judge|lawyer|witness|clerk", "letter|contract|verdict|law|case", "reads|signs|questions|files"),
        ("gardener|farmer|botanist|beekeeper", "rose|orchard|field|hive|tree", "waters|plants|prunes|sells"),
    ],
)
CHINESE = Grammar(
    sentences=[
        "{who}{when}{does}{what}。",
        "{when}，{who}又{does}了一次{how}的{what}。",
        "{name}说：“这{what}真{how}，{who}从来不{does}它！”",
        "你知道{name}的{what}为什么这么{how}吗？",
        "{name}花了{number}元，{who}才肯{does}{what}……",
        "{how}的{what}属于{name}，{who}{when}才会来。",
    ],
    words={
        "when": "早上|冬天以前|每个星期一|下午六点|雨停以后|一年两次",
        "how": "小|沉重|美丽|古老|奇怪|结实",
        "name": "小明|王老师|李华|张医生|Anna|阿强",
    },
    topics=[
        ("水手|船长|渔夫|领航员", "帆船|渔网|船锚|龙骨", "修理|检查|丢掉|拖走"),
        ("厨师|面包师|服务员|磨坊主", "面包|蛋糕|烤箱|菜谱", "品尝|端上|准备|加热"),
        ("法官|律师|证人|书记员", "合同|判决书|案卷|法律", "阅读|签署|质疑|整理"),
        ("园丁|农民|植物学家|养蜂人", "玫瑰|果园|蜂箱|苹果树", "浇灌|种植|修剪|出售"),
    ],
)


def _write_corpus(path: Path, grammar: Grammar, joint: str) -> Path:
    rng = random.Random(path.stem)

    def sentence(words: dict[str, str]) -> str:
        chosen = {role: rng.choice(options.split("|")) for role, options in words.items()}
        chosen |= {"When": chosen["when"].capitalize(), "number": str(rng.randint(2, 5000))}
        return rng.choice(grammar.sentences).format(**chosen)

    def document() -> str:
        words = grammar.words | dict(zip(("who", "what", "does"), rng.choice(grammar.topics), strict=True))
        return joint.join(sentence(words) for _ in range(rng.randint(3, 8)))

    path.write_text("\n\n".join(document() for _ in range(300)) + "\n", encoding="utf-8")
    return path
