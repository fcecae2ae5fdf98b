"""The reference's kernels for our residuals: sources and what it predicts of their registers.

`generate` starts an interpreter, because SymForce's epsilon is one for each process and must be
set before the first import of `symforce.symbolic`. That interpreter runs `main` below.
"""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, get_args

from benchmarks.kernels.cases import CASES, REFERENCE_KERNELS, Case, Role
from benchmarks.kernels.source import Side, Source

EPSILON = 1e-6
"""The reference's own value for float32, from its example."""


def generate(folder: Path) -> list[Source]:
    """Write the sources of all cases into `folder`; return what there is."""
    command = [sys.executable, "-m", "benchmarks.kernels.reference", str(folder)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    predicted = json.loads((folder / "registers.json").read_text(encoding="utf-8"))
    return [
        Source(
            case=case,
            role=role,
            side=Side.REFERENCE,
            path=folder / case.name / f"kernel_{name}.cu",
            predicted=predicted[name],
        )
        for case in CASES
        for name, role in _kernel_names(case).items()
    ]


def _kernel_names(case: Case) -> dict[str, Role]:
    return {f"{case.name}_{end}": role for end, role in REFERENCE_KERNELS.items()}


def main() -> None:
    """Generate into the folder that the command line names."""
    import symforce

    symforce.set_epsilon_to_number(EPSILON)
    folder = Path(sys.argv[1])
    predicted: dict[str, int] = {}
    for case in CASES:
        predicted |= _write(case, folder / case.name)
    (folder / "registers.json").write_text(json.dumps(predicted), encoding="utf-8")


def _write(case: Case, folder: Path) -> dict[str, int]:
    """Write a case's kernels and the headers they include; predicted registers by kernel."""
    from symforce.caspar import CasparLibrary

    folder.mkdir(parents=True, exist_ok=True)
    library = CasparLibrary()
    library.add_factor(with_their_markers(case))
    library.generate_links(folder, use_symlinks=False, python_bindings=False)
    predicted = {}
    for kernel in library.factors[0].make_kernels():
        kernel.generate(folder)
        predicted[kernel.name] = len(kernel.registers)
    return predicted


def with_their_markers(case: Case) -> Any:
    """The residual function with the reference's markers instead of ours."""
    from symforce.caspar import memory

    markers = {
        "TunableShared": memory.TunableShared,
        "TunableUnique": memory.TunableUnique,
        "ConstSequential": memory.ConstantSequential,
        "ConstIndexed": memory.ConstantIndexed,
        "ConstShared": memory.ConstantShared,
        "ConstUnique": memory.ConstantUnique,
    }
    function = case.load().function

    def residual(**arguments: Any) -> Any:
        return function(**arguments)

    residual.__name__ = case.name
    residual.__annotations__ = {}
    for name, annotation in inspect.get_annotations(function).items():
        if name != "return":
            declared, marker = get_args(annotation)
            residual.__annotations__[name] = Annotated[declared, markers[marker.__name__]]
    return residual


if __name__ == "__main__":
    main()
