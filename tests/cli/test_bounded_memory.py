import subprocess
import sys
from pathlib import Path

import pytest

LINE = 30_000_000
"""Characters of the only line: as a whole they take 4 GB in a tokenizer."""
LIMIT = 900
"""MB of memory in all, of which fine-tuning the small model takes 500."""

VERBS = """
import gzip, os, re, signal, sys, threading, time
from pathlib import Path
from keel.cli import main
from keel.data.tokenizer import Tokenizer

words = "the boat is in the harbour and the wind is quiet "
line = words * ({line} // len(words))
Path("line.txt").write_text(line + "\\n")
Path("line.csv").write_text("text,label\\nquiet,good\\n" + line + ",bad\\n")
with gzip.open("line.txt.gz", "wt", 1) as file:
    file.write(line)
Path("train.tsv").write_text("".join(f"a boat {{n}}\\tgood\\nsome wind {{n}}\\tbad\\n" for n in range(20)))
del line

def run(*words):
    sys.stdout = open("out.txt", "w")
    code = main([*words, "--quiet"])
    sys.stdout.close()
    return code

codes = [
    run("finetune", "onehot", "train.tsv", "--dev", "none", "--out", "model"),
    run("predict", "model", "line.txt"),
    run("predict", "model", "line.txt.gz"),
    run("evaluate", "model", "line.csv"),
    run("finetune", "onehot", "line.csv", "--out", "other"),
    run("check", "line.txt"),
    run("check", "line.csv"),
    run("embed", "line.txt", "--model", "model", "--out", "vectors.npy"),
]
killed = []
def kill():
    killed.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGTERM)
encode = Tokenizer.encode_flat
def encode_and_kill(self, *texts, **options):
    threading.Timer(0.01, kill).start()
    return encode(self, *texts, **options)
Tokenizer.encode_flat = encode_and_kill
codes.append(run("predict", "model", "line.txt"))
sys.stdout = sys.__stdout__
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())  # ru_maxrss counts the parent's memory
print(codes, int(peak[1]) // 1024, time.monotonic() - killed[0])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_huge_line_takes_bounded_memory_and_can_be_interrupted(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", VERBS.format(line=LINE)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    codes, _, rest = done.stdout.partition("] ")
    megabytes, seconds = rest.split()
    assert codes == "[0, 0, 0, 1, 1, 1, 1, 0, 130"
    assert int(megabytes) < LIMIT
    assert float(seconds) < 2
    for place in ("line.csv:3: this line has more than 5,000,000 characters", "interrupted"):
        assert place in done.stderr
