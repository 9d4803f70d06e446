import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "model_program.py"
CHECKS = re.findall(r"^def (check_\w+)", PROGRAM.read_text(), flags=re.MULTILINE)


@pytest.fixture(scope="module")
def verdicts() -> dict[str, str]:
    result = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.multiprocess
@pytest.mark.parametrize("check", CHECKS)
def test_model(check: str, verdicts: dict[str, str]) -> None:
    assert verdicts[check] == "ok", verdicts[check]
