"""`python -m benchmarks.kernels`: generate, compile and count both sides' kernels; write tables."""

import argparse
import datetime
import importlib.metadata
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.kernels import own, reference
from benchmarks.kernels.machine_code import nvcc_version
from benchmarks.kernels.measure import measure_all
from benchmarks.kernels.report import Report, markdown, write
from caspar.runtime.nvidia.nvrtc import nvrtc_version
from caspar.runtime.nvidia.toolkit import find_nvdisasm
from caspar.version import __version__


def main() -> None:
    """Parse the arguments, generate, measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out"), help="for the tables")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("out") / "kernel_tables",
        help="for sources and what was compiled; kept, so that only what changed is compiled again",
    )
    arguments = parser.parse_args()
    work: Path = arguments.work.resolve()
    start = time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(reference.generate, work / "reference")
        sources = [*own.generate(work / "ours"), *theirs.result()]
    print(f"generated {len(sources)} kernels in {time.perf_counter() - start:.0f} s", flush=True)
    report = Report(environment(), tuple(measure_all(sources, work / "compiled")))
    write(report, arguments.folder)
    print(markdown(report))
    print(f"took {time.perf_counter() - start:.0f} s")


def environment() -> dict[str, str]:
    """Versions and date."""
    return {
        "date": datetime.date.today().isoformat(),
        "caspar": __version__,
        "reference": f"symforce.caspar {importlib.metadata.version('symforce')}",
        "compiler of both": f"nvcc {nvcc_version()}",
        "caspar's own compiler": f"NVRTC {nvrtc_version()}",
        "disassembler": f"nvdisasm {_nvdisasm_version()}",
    }


def _nvdisasm_version() -> str:
    command = [str(find_nvdisasm()), "--version"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return text.partition(" V")[2].split()[0]


if __name__ == "__main__":
    main()
