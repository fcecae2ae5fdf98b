"""`python .ci/smoke.py`: an installed caspar works, far from its sources.

Run it with the interpreter of an environment into which only the wheel was installed. It solves the
example of the README on the processor, reads its own cache, and runs the command line.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
EXPECTED = "8,422.42"
"""The cost that the example ends at."""


def run(*command: str, folder: str) -> str:
    """What a command prints; its error ends this program."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"CASPAR_CACHE_DIR": str(Path(folder) / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=500
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)[:200]}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main() -> None:
    """Run everything in an empty folder."""
    example = re.findall(r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.M | re.S)[0]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "example.py"
        program.write_text(example, encoding="utf-8")
        place = run(sys.executable, "-c", "import caspar; print(caspar.__file__)", folder=folder)
        if Path(place.strip()).is_relative_to(README.parent / "caspar"):
            sys.exit(f"this is not an installed caspar: {place}")
        for _ in range(2):  # compiled, then from the cache
            printed = run(sys.executable, str(program), folder=folder)
            if EXPECTED not in printed:
                sys.exit(f"another cost than {EXPECTED}:\n{printed}")
        run(sys.executable, "-m", "caspar", "--version", folder=folder)
        run(sys.executable, "-m", "caspar", "doctor", folder=folder)
        shown = run(sys.executable, "-m", "caspar", "cache", "info", folder=folder)
    print(f"{sys.version.split()[0]}: {place.strip()}\n{shown}works")


if __name__ == "__main__":
    main()
