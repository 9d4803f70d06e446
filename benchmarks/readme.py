"""The tables of README.md that show measured figures, written from the files in `benchmarks/results`.

usage: python -m benchmarks.readme
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.registry import BLOCK_FORMATS, OUR_NAME

HERE = Path(__file__).parent
README, RESULTS = HERE.parent / "README.md", HERE / "results"
SOURCES = 64


def with_tables(text: str) -> str:
    """The text with each `<!-- name -->` ... `<!-- end -->` filled from `results/name.json`."""
    for name, table in TABLES.items():
        found = re.fullmatch(rf"(.*<!-- {name} -->\n).*?(<!-- end -->.*)", text, flags=re.S)
        if found is None:
            raise ValueError(f"README.md has no <!-- {name} --> with an <!-- end --> behind it")
        text = found[1] + table(json.loads((RESULTS / f"{name}.json").read_text())) + found[2]
    return text


def memory_table(result: Mapping[str, Any]) -> str:
    """MB of each loader by training processes, block formats first."""
    rows = [row for row in result["rows"] if row.get("sources") == SOURCES and "loader_pss_mb" in row]
    trainers = sorted({row["trainers"] for row in rows})
    figures: dict[tuple[bool, str], dict[int, float]] = {}
    for row in rows:
        by = f"{row['workers']} workers each" if row["workers"] else "threads"
        name = f"**{row['peer']}**" if row["peer"].startswith(OUR_NAME) else f"{row['peer']}, {by}"
        key = row["format"] not in BLOCK_FORMATS, f"{name} | {row['format']}"
        figures.setdefault(key, {})[row["trainers"]] = row["loader_pss_mb"]
    head = " | ".join(f"{count} training process{'es' if count > 1 else ''}" for count in trainers)
    lines = [f"| loader | format | {head} |", "|---|---|" + "---:|" * len(trainers)]
    for (_, name), found in sorted(figures.items(), key=lambda each: (each[0][0], max(each[1].values()))):
        cells = (f"{found[count]:,.0f}" if count in found else "–" for count in trainers)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


TABLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {"memory": memory_table}

if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
