"""Layers, what importing costs, and what is public."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import msdata_jax

ROOT = Path(__file__).parents[2]

FRAMEWORKS = {"jax", "jaxlib", "grain", "orbax", "torch", "tensorflow", "mpi4py"}
OPTIONAL = {
    *("pyarrow", "array_record", "PIL", "tokenizers", "tiktoken", "sentencepiece", "matplotlib", "optax"),
    *("soundfile", "soxr", "av"),
    *("pandas", "scipy", "click", "rich", "pytest"),
}

PUBLIC = [
    *("BadSampleError", "CheckpointError", "DGraph", "DataLoader", "DecodeAudio", "DecodeImage"),
    *(
        "DecodeVideo",
        "IMAGE_TOKEN",
        "JobFailed",
        "LaunchError",
        "MSDataError",
        "Patchify",
        "PatchifyAudio",
        "Recipe",
    ),
    *("RecipeError", "Source", "SourceError", "Split", "Tokenize", "Truncate", "__version__", "checkpoint"),
    *("costs", "initialize", "scaling"),
]


def loaded_by(*modules: str) -> set[str]:
    """Top-level modules that a fresh process has loaded after importing `modules`."""
    program = (
        f"import json, sys, threading, {', '.join(modules)}\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    line = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_imports_keep_to_their_layers() -> None:
    line = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


def test_importing_the_packages_loads_nothing_heavy() -> None:
    loaded = loaded_by("msdata_jax", "msdata_transport")
    assert {"msdata_jax", "msdata_transport"} <= loaded
    assert loaded & (FRAMEWORKS | OPTIONAL) == set()


def test_importing_the_package_alone_loads_no_numpy() -> None:
    assert "numpy" not in loaded_by("msdata_jax")


@pytest.mark.parametrize(
    "module",
    ["msdata_jax.loader", "msdata_jax.serve", "msdata_jax.processes", "msdata_jax.runtime.data_rank"],
)
def test_what_every_rank_imports_loads_no_framework_and_no_file_library(module: str) -> None:
    assert loaded_by(module) & (FRAMEWORKS | OPTIONAL) == set()


def test_a_recipe_loads_no_framework(tmp_path: Path) -> None:
    """Building one with every transform and cost, as data ranks do; the files are not opened."""
    (tmp_path / "some_recipe.py").write_text(
        "import msdata_jax as msd\n"
        "transforms = [msd.DecodeImage(), msd.Patchify(8), msd.DecodeAudio(), msd.PatchifyAudio(),\n"
        "    msd.DecodeVideo(fps=1), msd.Tokenize('t.json'), msd.Split(64)]\n"
        "recipe = msd.Recipe(sources={'s': msd.Source('s.parquet', transforms)}, seed=1,\n"
        "    strategy=msd.DGraph().mix({'s': 1}).pack(seq_len=64, rows=2, patches_per_row=8)\n"
        "    .cost(backbone=msd.costs.transformer(num_layers=2, d_model=64)).distribute('dp').balance())\n"
    )
    loaded = loaded_by(f"sys; sys.path.insert(0, {str(tmp_path)!r}); import some_recipe")
    assert loaded & (FRAMEWORKS | OPTIONAL) == set()


def test_public_names() -> None:
    assert sorted(msdata_jax.__all__) == PUBLIC
    assert dir(msdata_jax) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(msdata_jax, name) is not None


def test_an_unknown_name_says_so() -> None:
    with pytest.raises(AttributeError, match=r"'msdata_jax' has no attribute 'DataLoder'"):
        _ = msdata_jax.DataLoder


def test_public_names_are_the_same_for_type_checkers() -> None:
    """The lazy table and the imports under TYPE_CHECKING name the same things from the same places."""
    text = Path(msdata_jax.__file__).read_text()
    for name, home in msdata_jax._HOMES.items():
        assert f"from msdata_jax.{home} import {name} as {name}\n" in text


def test_no_module_of_a_folder_with_scripts_hides_one_of_python():
    """A script that is run by its path imports from its folder first."""
    for script in (ROOT / "msdata_jax" / "cli").glob("_doctor_*.py"):
        hidden = {path.stem for path in script.parent.glob("*.py")} & sys.stdlib_module_names
        assert not hidden
