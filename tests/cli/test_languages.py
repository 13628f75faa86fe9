"""Files with a language before them, on the command line."""

from collections.abc import Callable
from pathlib import Path

Run = Callable[..., tuple[int, str, str]]


def test_the_command_line_takes_a_language_before_each_file(
    run: Run, tiny: list[str], english_corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "de.txt").write_text("Der Bauer wohnt im Tal.\n\n" * 40, encoding="utf-8")
    code, _, err = run("pretrain", "bert", f"en:{english_corpus}", f"de:{tmp_path}/d*.txt", "--out", tmp_path / "m",
                       "--steps", 2, "--text.language_smoothing", 0.5, *tiny)  # fmt: skip
    assert code == 0
    assert "; en " in err
    assert ", de " in err
    code, _, err = run("pretrain", "bert", f"en:{english_corpus}", tmp_path / "de.txt", "--out", tmp_path / "n")
    assert code == 2
    assert "has no language before it" in err
    code, _, err = run(
        "pretrain", "bert", f"en:{english_corpus}", "--out", tmp_path / "n", "--text.language_smoothing", 2
    )
    assert code == 2
    assert "--text.language_smoothing" in err
