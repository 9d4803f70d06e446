"""Starts the training examples on small data under the names of recipe_text.py."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
MADE = {
    "tokenizer.json": "tokenizer.json",
    "code_py.jsonl": "text.jsonl",
    "docs_rst.parquet": "text.parquet",
    "man_de.arrayrecord": "text.arrayrecord",
    "man_fr.parquet": "text.parquet",
    "man_ja.parquet": "text.parquet",
    "man_ru.jsonl": "text.jsonl",
    "dict_en.jsonl": "text.jsonl",
}


def make_demo_text(job_data: Path, folder: Path) -> None:
    """The files that recipe_text.py reads, of the text in `job_data`."""
    for name, made in MADE.items():
        shutil.copyfile(job_data / made, folder / name)
    with tarfile.open(folder / "help_de.tar", "w") as tar:
        for number, path in enumerate(sorted(EXAMPLES.glob("*.py"))):
            tar.add(path, f"{number:03d}.txt")


def run_example(data: Path, name: str, *arguments: str, loaders: int = 0, trainers: int = 1) -> str:
    """What the example prints: in one process where `loaders` is 0, else under `msdata launch`."""
    launch = ["-m", "msdata_jax", "launch", "--loaders", str(loaders), "--trainers", str(trainers)]
    launched = [*launch, str(EXAMPLES / "recipe_text.py"), "--"] if loaders else []
    inherited = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    env = {
        **inherited,
        "MSDATA_DEMO_DATA": str(data),
        "JAX_PLATFORMS": "cpu",
        "TOKENIZERS_PARALLELISM": "false",
        # Compiling is half of what these jobs do: what one compiled, the next ones take.
        "JAX_COMPILATION_CACHE_DIR": str(data / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    line = [sys.executable, *launched, str(EXAMPLES / name), *arguments]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout
