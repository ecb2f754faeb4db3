"""A comparison on a disk that is full, and the same command when it has room again."""

import json
import subprocess
import sys

import pytest

# In a mount namespace of its own, so that it needs no rights and leaves nothing behind.
SCRIPT = """
out=$1; size=$2; shift 2
mount -t tmpfs -o size=$size none "$out" || exit 99
"$@"
echo "status $?"
echo after >&2
mount -o remount,size=64m "$out"
"$@" > /dev/null
echo "status $?"
cp "$out/summary.json" "$out.json"
"""


@pytest.mark.more
@pytest.mark.parametrize("size", ["4k", "48k", "160k"])
def test_a_full_disk_is_one_line_and_loses_nothing(text_file, tmp_path, size):
    out = tmp_path / "out"
    out.mkdir()
    command = [
        *(sys.executable, "-m", "whereness", "compare", "--text", str(text_file)),
        *("--train-length", "8", "--lengths", "8", "16", "--steps", "60", "--batch", "2"),
        *("--order-steps", "60", "--width", "16", "--heads", "2", "--jobs", "1"),
        *("--encodings", "nope", "learned", "--seeds", "2", "--out", str(out)),
    ]
    shell = ["unshare", "-rm", "sh", "-c", SCRIPT, "sh", str(out), size, *command]
    ended = subprocess.run(shell, check=True, capture_output=True, text=True, timeout=100)
    first, second = (int(s.split()[-1]) for s in ended.stdout.splitlines() if "status" in s)
    told, _, later = ended.stderr.partition("after\n")
    assert first == 2
    assert told.count("\n") == 1
    assert told.startswith(f"whereness: {out}/")
    assert "full" in told or "No space left" in told
    assert (second, later) == (0, "")
    found = json.loads((tmp_path / "out.json").read_text())
    assert all("failed" not in entry for entry in found["encodings"].values())
