"""Runs the blocks of a page, in order, in the folder that it is started in.

usage: run_blocks.py BLOCKS.json, a list of [language, code, where]

Python shares one namespace; a block that begins with `# name.py` is written to that file instead. Bash runs
in a process of its own.
"""

import json
import re
import subprocess
import sys
from pathlib import Path


def main() -> None:
    blocks = json.loads(Path(sys.argv[1]).read_text())
    sys.path.insert(0, str(Path.cwd()))
    namespace = {"__name__": "__main__"}
    for language, code, where in blocks:
        name = re.match(r"# ([\w./-]+\.\w+)\n", code)
        if name:
            Path(name[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(name[1]).write_text(code)
        elif language == "bash":
            print(f"--- {where}", file=sys.stderr, flush=True)
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], check=False)
            if done.returncode:
                sys.exit(f"{where}: exit status {done.returncode}")
        else:
            exec(compile(code, where, "exec"), namespace)


if __name__ == "__main__":
    main()
