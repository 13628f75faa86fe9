import hashlib
import json
from pathlib import Path

from keel.studio.server import STATIC

FRONTEND = Path(__file__).parents[2] / "frontend"
NO_SOURCES = {".npmrc", "README.md"}


def test_the_built_pages_match_their_sources() -> None:
    """After a change in frontend/, run `make studio` and commit what it builds."""
    manifest = json.loads((STATIC / "sources.json").read_text(encoding="utf-8"))
    assert hashes(FRONTEND, "node_modules") == manifest["sources"]
    assert hashes(STATIC, "sources.json") == manifest["built"]


def test_the_page_loads_nothing_from_elsewhere_and_has_no_inline_code() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert "://" not in page
    assert "<style" not in page
    assert "<script>" not in page


def hashes(folder: Path, left_out: str) -> dict[str, str]:
    """The SHA-256 of all files of a folder, by their path."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in paths.items()
        if name.split("/")[0] not in {left_out, *NO_SOURCES}
    }
