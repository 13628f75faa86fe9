from pathlib import Path

import pytest

TESTS = """
import pytest

def test_asks_for_data(data_dir):
    assert data_dir.is_dir()

@pytest.mark.data
def test_is_marked():
    pass

def test_needs_nothing():
    pass
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    text = (Path(__file__).parent / "conftest.py").read_text(encoding="utf-8")
    pytester.makeconftest(text.replace(', "tests.tiny_task"', ""))  # which is not importable there
    pytester.makeini("[pytest]\nmarkers = data\n")
    pytester.makepyfile(TESTS)
    monkeypatch.delenv("CI", raising=False)
    return pytester


def test_with_data_every_test_runs(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEL_DATA", str(project.path))
    project.runpytest_subprocess().assert_outcomes(passed=3)
    project.runpytest_subprocess("-m", "data").assert_outcomes(passed=2, deselected=1)


def test_without_data_tests_skip_with_a_counted_line(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEL_DATA", str(project.path / "absent"))
    result = project.runpytest_subprocess()
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines("2 tests skipped: no data in *absent (set KEEL_DATA)")


def test_without_data_ci_fails(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEL_DATA", str(project.path / "absent"))
    monkeypatch.setenv("CI", "true")
    project.runpytest_subprocess().assert_outcomes(passed=1, errors=2)


def test_made_up_corpora_have_300_documents(english_corpus: Path, chinese_corpus: Path) -> None:
    for path in (english_corpus, chinese_corpus):
        documents = path.read_text(encoding="utf-8").strip().split("\n\n")
        assert len(documents) == 300
        assert len(set(documents)) == 300
        assert not any("{" in document or "|" in document for document in documents)
