"""Draw README's picture from the summary of a comparison.

    python docs/picture.py runs/compare-0123456789ab

writes compare-light.svg and compare-dark.svg beside this file.
"""

import json
import sys
from pathlib import Path

from whereness.lab.report import chart
from whereness.lab.report.view import ranking

HERE = Path(__file__).parent
INKS = {"light": "#1f2328", "dark": "#e6edf3"}


def main(folder: str) -> None:
    """Draw the summary in `folder`."""
    summary = json.loads((Path(folder) / "summary.json").read_text(encoding="utf-8"))
    entries = summary["encodings"]
    names = ranking(entries, summary["settings"]["lengths"])
    picture = chart.still(chart.data(names, entries, summary["settings"]))
    for ground, ink in INKS.items():
        text = picture.replace("currentColor", ink)
        (HERE / f"compare-{ground}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} DIR, the folder of a comparison")
    main(sys.argv[1])
