"""A map of 50,000 words: CPU time of its layout, size of its page, and frames per second while it pans and zooms.

    python benchmarks/map_frames.py VECTORS [--top 50000] [--page FILE]

needs Chromium, which draws without a GPU here. A scripted flight pans and zooms for 240 frames, from the whole map to
25 times and back; the time between frames is that of requestAnimationFrame, at most 60 per second.
"""

import argparse
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

import keel

FLIGHT = """
async () => {
  const frames = 240, times = [], costs = [], own = draw;
  window.draw = () => { const began = performance.now(); own(); costs.push(performance.now() - began); };
  await new Promise(done => {
    let frame = 0;
    const step = now => {
      times.push(now);
      const part = frame / frames, wide = facts.width, high = facts.height;
      const x = wide * (0.5 + 0.2 * Math.sin(9 * part)), y = high * (0.5 + 0.2 * Math.cos(7 * part));
      move({ x, y, zoom: Math.exp(3.2 * Math.sin(Math.PI * part)) });
      if (++frame < frames) requestAnimationFrame(step); else done();
    };
    requestAnimationFrame(step);
  });
  window.draw = own;
  const sorted = values => values.sort((one, other) => one - other);
  const gaps = sorted(times.slice(1).map((at, index) => at - times[index]));
  const share = (values, part) => values[Math.floor(part * (values.length - 1))];
  return [1000 * gaps.length / (times.at(-1) - times[0]), share(gaps, 0.5), share(gaps, 0.95),
    share(sorted(costs), 0.5), share(costs, 0.95)];
}
"""


def measure_layout(vectors: Path, top: int, page: Path) -> None:
    """Write the page, and print its size and the CPU time."""
    keel.word_map(vectors, top=500, by="umap", out=page)  # compiles the kernels
    began, wall = time.process_time(), time.perf_counter()
    keel.word_map(vectors, top=top, out=page)
    cpu, elapsed = time.process_time() - began, time.perf_counter() - wall
    print(f"map of {top:,} words: {cpu:.1f} s of CPU time, {elapsed:.1f} s; page of {page.stat().st_size:,} bytes")


def measure_frames(page_file: Path, ratio: float) -> None:
    """Print frames per second, the time between frames and that of drawing one, at a device pixel ratio."""
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=shutil.which("chromium"), args=["--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 800}, device_scale_factor=ratio)
        began = time.perf_counter()
        page.goto(page_file.resolve().as_uri())
        page.wait_for_selector("body[data-shown]", timeout=60_000)
        opened = time.perf_counter() - began
        for _ in range(3):
            frames, gap, slow_gap, cost, slow_cost = page.evaluate(FLIGHT)
            print(
                f"pixel ratio {ratio:g}: {frames:.0f} frames per second; {gap:.0f} ms between frames "
                f"(95%: {slow_gap:.0f}); drawing {cost:.1f} ms (95%: {slow_cost:.1f}); opened in {opened:.2f} s"
            )
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("vectors", type=Path)
    parser.add_argument("--top", type=int, default=50_000)
    parser.add_argument("--page", type=Path, help="a page that exists already")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        page = options.page or Path(folder) / "map.html"
        if options.page is None:
            measure_layout(options.vectors, options.top, page)
        for ratio in (1, 2):
            measure_frames(page, ratio)


if __name__ == "__main__":
    main()
