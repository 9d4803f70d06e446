"""A Slurm cluster of this machine for tests: `scripts/slurm/local_cluster.sh`, and what tests ask of it."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts" / "slurm"
JOB = ROOT / "tests" / "slurm" / "job"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")
SECONDS = 120.0
"""How long a job may take, on a machine that does other things as well."""


class Cluster:
    """Four nodes: n0 and n1 have four fake GPUs each, n2 and n3 have none.

    Args:
        folder: for everything.
        port: the first of five.
    """

    def __init__(self, folder: Path, port: int) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        self._env = {
            **inherited,
            "LOCAL_CLUSTER_DIR": str(folder),
            "LOCAL_CLUSTER_PORT": str(port),
            "SLURM_CONF": str(folder / "etc" / "slurm.conf"),
            # All nodes are this machine, so ranks meet on its loopback, and each has a share of its cores.
            "FI_TCP_IFACE": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "transport", JOB))),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def control(self, *verb: str) -> None:
        """Let the script start or stop the cluster, or crash a node."""
        script = [str(SCRIPTS / "local_cluster.sh"), *verb]
        done = subprocess.run(script, env=self._env, text=True, capture_output=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr

    def call(self, *command: str, seconds: float = 60.0) -> str:
        """Run a command of Slurm's; its output."""
        done = subprocess.run(
            command, env=self._env, text=True, capture_output=True, timeout=seconds, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, folder: Path, script: str, *arguments: str, **env: str) -> "Job":
        """`sbatch` one of the project's scripts, or the text of one, with options before and behind it.

        Arguments up to `--` are options of sbatch, the others go to the script.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "out").mkdir(exist_ok=True)
        path = SCRIPTS / script
        if script.startswith("#!"):
            path = folder / "job.sbatch"
            path.write_text(script)
        split = arguments.index("--") if "--" in arguments else len(arguments)
        line = ["sbatch", "--parsable", f"--output={folder / 'log'}", *arguments[:split], str(path)]
        done = subprocess.run(
            [*line, *arguments[split + 1 :]],
            cwd=folder,
            env={**self._env, "MSDATA_TEST_OUT": str(folder / "out"), **env},
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return Job(self, folder, done.stdout.split(";")[0].strip())


class Job:
    """A job that was submitted.

    Attributes:
        number: Slurm's.
        out: where its ranks and its training processes leave traces.
    """

    def __init__(self, cluster: Cluster, folder: Path, number: str) -> None:
        self.number = number
        self.out = folder / "out"
        self._cluster = cluster
        self._log = folder / "log"

    @property
    def log(self) -> str:
        """What script and ranks printed."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def state(self) -> str:
        """Slurm's word for how it is."""
        return self._show("JobState")

    @property
    def restarts(self) -> int:
        return int(self._show("Restarts"))

    @property
    def exit_status(self) -> int:
        """Of the script."""
        return int(self._show("ExitCode").split(":")[0])

    def wait(self, states: Sequence[str] = ENDED, seconds: float = SECONDS) -> str:
        """Wait until the job is in one of these states; gives it. One that takes too long is cancelled."""
        self.wait_for(lambda: self.state in states, f"in {states}", seconds)
        return self.state

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
        """Wait until something has happened."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self._cluster.call("scancel", "--full", self.number)
                raise AssertionError(f"job {self.number} is {self.state}, not {what}\n{self.log[-4000:]}")
            time.sleep(0.1)  # between two looks

    def hurry(self) -> None:
        """Start a job that is queued again within seconds, not in the two minutes that Slurm waits."""
        self.wait(("PENDING",))
        self._cluster.call("scontrol", "update", f"jobid={self.number}", "StartTime=now+2")

    def ranks(self, role: str) -> dict[int, dict]:
        """What each rank of a role said of itself: its process, its host."""
        found = [json.loads(path.read_text()) for path in self.out.glob(f"rank-*-{role}.json")]
        return {each["rank"]: each for each in found}

    def steps(self, process: int = 0) -> list[dict]:
        """What a training process wrote of each step so far."""
        path = self.out / f"steps-{process}.jsonl"
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def shards(self, num_processes: int) -> dict[int, dict[str, str]]:
        """A digest of each piece of each step's arrays, by step; alike where two processes have the same."""
        found: dict[int, dict[str, str]] = {}
        for process in range(num_processes):
            for line in self.steps(process):
                pieces = found.setdefault(line["step"], {})
                assert all(pieces.get(name, digest) == digest for name, digest in line["shards"].items())
                pieces.update(line["shards"])
        return found

    def _show(self, field: str) -> str:
        shown = self._cluster.call("scontrol", "show", "job", self.number)
        found = re.search(rf"\b{field}=(\S+)", shown)
        assert found, shown
        return found[1]
