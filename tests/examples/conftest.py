"""The examples are scripts beside each other: their folder is what `python examples/train.py` puts first."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "examples"))
