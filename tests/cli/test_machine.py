from pathlib import Path

import pytest

from msdata_jax.cli import machine


def test_versions_name_python_and_what_is_installed() -> None:
    versions = machine.package_versions()
    assert {"python", "numpy", "msdata-jax"} <= versions.keys()
    assert "a-package-that-is-not-there" not in versions


def test_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       2048 kB\nMemAvailable:   1024 kB\nHugePages_Total:       0\n")
    assert machine.memory_bytes(meminfo) == (2048 << 10, 1024 << 10)
    assert machine.memory_bytes(tmp_path / "nothing") == (0, 0)


def test_cpu_model(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor : 0\nmodel name\t: A Fine CPU @ 3 GHz\nprocessor : 1\nmodel name\t: other\n"
    )
    assert machine.cpu_model(cpuinfo) == "A Fine CPU @ 3 GHz"


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        ("0::/job/step\n", {"job/step/memory.max": "max", "job/memory.max": "4096"}, 4096),
        ("0::/job/step\n", {"job/step/memory.max": "1024", "job/memory.max": "4096"}, 1024),
        ("0::/not/visible/here\n", {"memory.max": "2048"}, 2048),
        ("4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "512"}, 512),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": str(2**63 - 4096)}, None),
        ("0::/\n", {}, None),
    ],
)
def test_cgroup_limit(tmp_path: Path, membership: str, files: dict[str, str], limit: int | None) -> None:
    (tmp_path / "cgroup").write_text(membership)
    root = tmp_path / "root"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert machine.cgroup_memory_limit(tmp_path / "cgroup", root) == limit
