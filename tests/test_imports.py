"""The structure of the package as tests: who imports whom, what is loaded, how long things are.

The contract is the two tables at the top; imports inside functions and `if TYPE_CHECKING` blocks
count like any other.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from tests.forks import run_in_forks

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "caspar"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Parts of the package, and the parts each may import besides itself: all that stand before it,
# except that ir does not see memory, passes and frontend do not see each other, neither do kernels
# and solver, and io is plain data that only what stands on top of all reads.
PARTS = {
    "version": "",
    "errors": "version",
    "options": "version errors",
    "user_arrays": "",
    "progress": "",
    "tables": "",
    "ir": "version errors options",
    "memory": "version errors options ir",
    "passes": "version errors options ir memory",
    "frontend": "version errors options user_arrays ir memory",
    "equations": "version errors options ir memory frontend",
    "codegen": "version errors options ir memory passes frontend equations",
    "runtime": "version errors options user_arrays ir memory passes frontend equations codegen",
    "driver": "version errors options progress ir memory passes frontend equations codegen runtime",
    "tracing": "version errors options progress ir memory passes frontend equations"
    " codegen runtime driver",
    "inspect": "version errors options progress tables ir memory passes frontend equations codegen"
    " runtime driver tracing",
    "arrays": "version errors options user_arrays ir memory codegen runtime driver",
    "solver": "version errors options progress tables user_arrays ir memory passes"
    " frontend equations codegen runtime driver tracing",
    "batch": "version errors options progress user_arrays ir memory passes frontend equations"
    " codegen runtime driver tracing inspect solver",
    "kernels": "version errors options progress user_arrays ir memory passes frontend codegen"
    " runtime driver tracing inspect arrays",
    "autodiff": "errors memory frontend tracing arrays kernels",
    "torch": "errors frontend arrays solver batch kernels autodiff",
    "jax": "errors frontend arrays solver batch kernels autodiff",
    "io": "errors user_arrays",
    "initialize": "errors io",
    "bundle_adjustment": "frontend",
    "cameras": "errors",
    "factors": "errors options frontend cameras",
    "live": "errors options memory frontend equations codegen runtime tracing solver factors",
    "loss": "frontend",
    "report": "solver",
    "distributed": "runtime solver",
    "plot": "errors solver io",
    "colmap": "version errors options progress user_arrays ir memory passes frontend"
    " equations codegen runtime driver tracing solver io cameras loss factors",
    "curves": "errors options frontend batch loss",
    "pose_graph": "version errors options progress user_arrays ir memory passes"
    " frontend equations codegen runtime driver tracing solver io initialize factors cameras loss",
    "sfm": "errors io cameras colmap",
    "scene": "errors frontend arrays solver io colmap",
    "view": "errors solver io scene",
    "rerun": "errors solver scene",
    "cli": "version errors options progress ir memory passes frontend equations codegen runtime"
    " driver inspect solver io colmap",
    "__main__": "cli",
}

# Rooms of a part, and the rooms beside it that each may import. A part and its rooms see each
# other.
ROOMS = {
    "batch": {"generate": "", "gradients": "generate", "constraints": "generate gradients"},
    "io": {"graphs": ""},
    "codegen": {"cpu": "", "cuda": "", "llvm": "", "batch": "cpu cuda"},
    "colmap": {"files": "", "adjust": "", "priors": "adjust"},
    "codegen/cuda": {"loop": "", "structure": ""},
    "frontend": {
        "symbolic": "",
        "tracing": "symbolic",
        "factors": "symbolic tracing",
        "kernels": "symbolic tracing",
    },
    "inspect": {"pictures": ""},
    "kernels": {"call": ""},
    "memory": {"tiling": "", "accessors": "tiling"},
    "memory/accessors": {"sums": "", "nodes": ""},
    "passes": {"graph": "", "scheduling": ""},
    "runtime": {"nvidia": "", "group": "", "cpu": "group", "cuda": "nvidia group"},
    "runtime/cuda": {
        "compile": "",
        "launch": "compile",
        "loop": "launch compile",
        "structure": "compile",
        "direct": "compile launch",
    },
    "solver": {
        "choice": "",
        "input": "",
        "result": "input",
        "plan": "input result",
        "system": "plan",
        "normal": "input",
        "covariance": "choice input result normal",
        "gradients": "choice input result normal covariance",
        "linear": "choice plan system normal",
        "lm": "input result plan system linear",
        "constraints": "choice input result normal covariance gradients lm",
        "shards": "choice input result plan system linear lm",
    },
    "solver/linear": {"explicit": ""},
    "solver/lm": {"checks": "", "plain": ""},
}

MAX_FILES = 12
"""In a folder, besides its `__init__`."""

MAX_IMPORTED = 20
"""Modules of the package that a module imports at its top; `caspar/__init__.py` gathers all public
names."""

# Parts that may `import caspar` itself, to reach public names that are loaded when first used: what
# draws, reports and inspects, and the solver behind the command line.
LAZY_PARTS = "frontend kernels arrays solver cli"

# Rooms and modules that a solve on the processor does without. Whoever stands outside imports them
# inside the function that uses them, and their types under `if TYPE_CHECKING`. What a cached kernel
# needs no more is among them. Nothing else is imported inside a function.
LATE = (
    *(
        "batch/constraints",
        "batch/inspection",
        "codegen/batch",
        "codegen/cpu/kernel",
        "codegen/cuda",
    ),
    *("codegen/llvm/translate", "colmap/averaging", "colmap/global_mapper", "colmap/incremental"),
    *("colmap/positioning", "equations/adjoint", "frontend/grids"),
    "frontend/patches",
    *("frontend/kernels", "frontend/printing", "frontend/symbolic/lookups"),
    *("passes/graph", "passes/pipeline", "passes/scheduling"),
    *("runtime/cpu", "runtime/cuda", "runtime/group", "runtime/nvidia"),
    *("solver/constraints", "solver/covariance", "solver/gnc", "solver/gradients"),
    *("solver/choice/jacobian", "solver/lm/plain/decision", "solver/plan/memory_table"),
    "solver/prepared",
    *("solver/normal", "solver/result/recording", "solver/result/report", "solver/shards"),
)

# Modules in such rooms that everybody imports at the top.
EARLY = ("runtime/group/member", "solver/normal/blocks", "solver/shards/crew")

# What a solve on the processor imports of LATE: where it runs.
ON_PROCESSOR = ("runtime/cpu",)

MAX_PLAIN = 248
"""Modules of the package that a solve on the processor imports, its kernels being in the cache."""

# Modules that import public names, what exists on some machines only, or what takes a tenth of a
# second and is seldom used, inside a function.
LAZY_MODULES = (
    "__init__.py",
    "inspect/pictures/draw_graph.py",
    "runtime/cpu/supernodal.py",
    "runtime/cuda/direct/cudss.py",
    "runtime/cuda/loop/repeat.py",
    "runtime/cuda/nccl.py",
    "runtime/nvidia/probe.py",
    "runtime/nvidia/toolkit.py",
    "rerun/logger.py",
    "solver/input/separate_parts.py",
)

# Third-party packages, and the parts that may import them.
THIRD_PARTY = {
    "cuda": "runtime",
    "cupy": "runtime",
    "cupy_backends": "runtime",
    "cupyx": "runtime",
    "igraph": "inspect",
    "jax": "jax",
    "llvmlite": "runtime",
    "matplotlib": "plot",
    "mpl_toolkits": "plot",
    "numpy": "any",
    "nvmath": "runtime",
    "plotly": "view",
    "pycolmap": "colmap",
    "platformdirs": "runtime driver cli",
    "qdldl": "runtime initialize",
    "rerun": "rerun",
    "rich": "tables inspect kernels solver cli",
    "rslab": "runtime",
    "scipy": "any",
    "symengine": "frontend",
    "symforce": "frontend bundle_adjustment cameras factors loss colmap curves pose_graph scene",
    "sympy": "frontend curves",
    "threadpoolctl": "runtime",
    "torch": "torch",
    "typing_extensions": "options solver",
}

HEAVY = (
    *("cupy", "igraph", "jax", "llvmlite", "matplotlib", "plotly", "rerun", "rich", "scipy"),
    *("symengine", "symforce", "sympy", "torch"),
)
"""Not loaded by `import caspar`: they cost seconds."""

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 90


def for_each(paths: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Makes one test of a check of one path; it names all that fail."""

    def decorated(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            wrong = []
            for path in paths:
                try:
                    check(path)
                except AssertionError as error:
                    wrong.append(str(error))
            assert wrong == []

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorated


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _part(path: Path) -> str:
    """The part a module belongs to; "" for caspar/__init__.py."""
    part = path.relative_to(PACKAGE).with_suffix("").parts[0]
    return "" if part == "__init__" else part


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), path)


def _imported_names(node: ast.AST) -> Iterator[str]:
    """Dotted names a statement imports: `from a import b` imports a.b."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: relative import"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def _import_statements(path: Path) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import of a module, and whether it is in a function or under `if TYPE_CHECKING`."""
    found: list[tuple[ast.Import | ast.ImportFrom, bool]] = []
    left: list[tuple[ast.AST, bool]] = [(_tree(path), False)]
    while left:
        node, is_late = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, is_late))
        is_late = (
            is_late
            or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        )
        left += [(one, is_late) for one in ast.iter_child_nodes(node) if isinstance(one, _BLOCKS)]
    return found


_BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)
"""What statements stand in."""


def _imports(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line and split dotted name of every import of a module, wherever it stands."""
    for node, _ in _import_statements(path):
        yield from ((node.lineno, name.split(".")) for name in _imported_names(node))


def _contract_break(part: str, dotted: list[str]) -> str:
    """What is wrong with an import in a part of the package, or ""."""
    top = dotted[0]
    if top == "caspar":
        if len(dotted) == 1:
            return "" if part in LAZY_PARTS.split() else f"{part} must not import caspar itself"
        target = dotted[1]
        allowed = target == part or target in PARTS[part].split()
        return "" if allowed else f"{part} must not import caspar.{target}"
    if top in sys.stdlib_module_names:
        return ""
    if top not in THIRD_PARTY:
        return f"{top} is not in the table of third-party packages"
    parts = THIRD_PARTY[top].split()
    return "" if "any" in parts or part in parts else f"{top} belongs to {' and '.join(parts)}"


@for_each(MODULES)
def test_imports_follow_the_contract(path: Path) -> None:
    part = _part(path)
    if part == "":
        return  # gathers the public names of all parts; what it loads is tested below
    assert part in PARTS, f"{part} is not in the table of parts"
    breaks = [
        f"{_name(path)}:{line}: {wrong}"
        for line, dotted in _imports(path)
        if (wrong := _contract_break(part, dotted))
    ]
    assert not breaks, "\n".join(breaks)


def _room_break(path: Path, dotted: list[str]) -> str:
    """What is wrong with an import between rooms that stand beside each other, or ""."""
    here = path.relative_to(ROOT).with_suffix("").parts
    depth = 0
    while depth < min(len(here), len(dotted)) and here[depth] == dotted[depth]:
        depth += 1
    folder = ROOT.joinpath(*here[:depth])
    rooms = [parts[depth] for parts in (here, dotted) if depth < len(parts)]
    if depth < 2 or len(rooms) < 2 or not all((folder / room).is_dir() for room in rooms):
        return ""
    own, other = rooms
    allowed = ROOMS["/".join(here[1:depth])][own].split()
    return "" if other in allowed else f"{own} must not import {'.'.join(dotted)}"


@for_each(MODULES)
def test_rooms_follow_the_contract(path: Path) -> None:
    breaks = [
        f"{_name(path)}:{line}: {wrong}"
        for line, dotted in _imports(path)
        if (wrong := _room_break(path, dotted))
    ]
    assert not breaks, "\n".join(breaks)


def test_rooms_are_those_of_the_tables() -> None:
    folders = {folder for module in MODULES for folder in (module.parent,) if folder != PACKAGE}
    said = {name for name in PARTS if (PACKAGE / name).is_dir()}
    said |= {f"{part}/{room}" for part, rooms in ROOMS.items() for room in rooms}
    assert {folder.relative_to(PACKAGE).as_posix() for folder in folders} == said


def test_rooms_are_in_order() -> None:
    """Each room imports only rooms that the table has before it: there is no circle."""
    for part, rooms in ROOMS.items():
        before: set[str] = set()
        for room, allowed in rooms.items():
            assert set(allowed.split()) <= before, f"{part}/{room}"
            before.add(room)


@for_each(sorted({path.parent for path in MODULES}))
def test_rooms_are_small_and_say_what_they_do(folder: Path) -> None:
    files = [file.name for file in folder.glob("*.py") if file.name != "__init__.py"]
    assert len(files) <= MAX_FILES, f"{_name(folder)} holds {len(files)} files"
    said = ast.get_docstring(_tree(folder / "__init__.py")) or ""
    sentences = re.findall(r"[.:?](?=\s|$)", said)
    assert len(sentences) >= 3, f"{_name(folder)}: its docstring has {len(sentences)} sentences"


def _module(dotted: list[str]) -> str:
    """The module of the package that an imported name is, or stands in."""
    place = ROOT.joinpath(*dotted)
    while not place.is_dir() and not place.with_suffix(".py").is_file():
        place = place.parent
    return place.relative_to(ROOT).as_posix()


def _is_within(place: str, places: tuple[str, ...]) -> bool:
    return any(place == one or place.startswith(f"{one}/") for one in places)


def _is_late(place: str) -> bool:
    """Whether a module, named by its path without suffix, is imported when it is used."""
    return _is_within(place, LATE) and not _is_within(place, EARLY)


@for_each(MODULES)
def test_modules_import_few_others(path: Path) -> None:
    if _part(path) == "":
        return
    names = chain.from_iterable(
        _imported_names(node) for node, is_late in _import_statements(path) if not is_late
    )
    split = (name.split(".") for name in names)
    imported = {_module(dotted) for dotted in split if dotted[0] == PACKAGE.name}
    assert len(imported) <= MAX_IMPORTED, f"{_name(path)} imports {', '.join(sorted(imported))}"


@pytest.mark.parametrize(
    ("name", "imported", "is_allowed"),
    [
        ("solver/plan/plan.py", "caspar.solver.input.problem", True),
        ("solver/plan/plan.py", "caspar.solver.linear.methods", False),
        ("solver/plan/plan.py", "caspar.solver.active", True),
        ("solver/solver.py", "caspar.solver.lm.minimize", True),
        ("runtime/cpu/backend.py", "caspar.runtime.cuda.backend", False),
        ("runtime/cuda/loop/loop.py", "caspar.runtime.cuda.launch.launch", True),
        ("runtime/cuda/launch/launch.py", "caspar.runtime.cuda.loop.loop", False),
    ],
)
def test_room_contract_refuses(name: str, imported: str, is_allowed: bool) -> None:
    assert (_room_break(PACKAGE / name, imported.split(".")) == "") == is_allowed


@pytest.mark.parametrize(
    ("part", "name", "is_allowed"),
    [
        ("passes", "caspar.ir.graph.Graph", True),
        ("passes", "caspar.frontend.factors.trace", False),
        ("frontend", "caspar.passes", False),
        ("ir", "caspar.memory.access.Read", False),
        ("solver", "caspar.io.bal", False),
        ("io", "caspar.options", False),
        ("ir", "caspar", False),
        ("solver", "caspar", True),
        ("frontend", "caspar", True),
        ("frontend", "caspar.inspect.stages", False),
        ("inspect", "caspar.frontend.factors.trace", True),
        ("kernels", "caspar.driver.compile_kernel", True),
        ("kernels", "caspar.inspect.stages", True),
        ("kernels", "caspar.solver.solver", False),
        ("solver", "caspar.arrays.convert", False),
        ("kernels", "cupy", False),
        ("inspect", "symforce.symbolic", False),
        ("solver", "caspar.inspect", False),
        ("solver", "caspar.plot", False),
        ("plot", "caspar.io.bal", True),
        ("solver", "matplotlib.figure", False),
        ("frontend", "symforce.symbolic", True),
        ("codegen", "sympy.printing", False),
        ("solver", "cupy", False),
        ("codegen", "llvmlite.binding", False),
        ("ir", "torch", False),
        ("errors", "collections.abc", True),
    ],
)
def test_contract_refuses(part: str, name: str, is_allowed: bool) -> None:
    assert (_contract_break(part, name.split(".")) == "") == is_allowed


def _time_break(path: Path, node: ast.AST, is_late: bool) -> str:
    """What is wrong with the place of an import in a module, or ""."""
    here = path.relative_to(PACKAGE).with_suffix("").as_posix()
    is_plain = _part(path) in {"solver", *PARTS["solver"].split()} and not _is_late(here)
    for name in _imported_names(node):
        dotted = name.split(".")
        if dotted[0] != PACKAGE.name:
            if is_late:
                return f"{name} belongs to the top of the file"
            continue
        place = _module(dotted).removeprefix(f"{PACKAGE.name}/").removesuffix(".py")
        if is_late and not _is_late(place):
            return f"{name} belongs to the top of the file"
        if not is_late and is_plain and _is_late(place):
            return f"{name} is imported by the function that uses it"
    return ""


@for_each(MODULES)
def test_imports_stand_at_the_top(path: Path) -> None:
    """What a solve on the processor does without is imported when used, all else at the top."""
    if path.relative_to(PACKAGE).as_posix() in LAZY_MODULES:
        return
    breaks = [
        f"{_name(path)}:{node.lineno}: {wrong}"
        for node, is_late in _import_statements(path)
        if (wrong := _time_break(path, node, is_late))
    ]
    evasions = [
        f"{_name(path)}:{number}: {line.strip()}"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\b(import_module|__import__)\b", line)
    ]
    assert not breaks + evasions, "\n".join(breaks + evasions)


PLAIN_SOLVE = """
import sys
from typing import Annotated

import numpy as np
import symforce.symbolic as sf

import caspar


class Place(sf.V2): ...


class Offset(sf.V2): ...


@caspar.factor
def between(
    start: Annotated[Place, caspar.TunableShared],
    end: Annotated[Place, caspar.TunableShared],
    offset: Annotated[Offset, caspar.ConstSequential],
) -> sf.V2:
    return end - start - offset


arrays = {"start": np.arange(9), "end": np.arange(1, 10), "offset": np.ones((9, 2))}
solver = caspar.Solver([between], backend="cpu")
solver.solve({"Place": np.zeros((10, 2)), "between": arrays}, fixed={"Place": [0]})
print(*sys.modules)
"""


def test_a_solve_on_the_processor_imports_what_it_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process takes its kernels from the cache."""
    program = tmp_path / "program.py"
    program.write_text(PLAIN_SOLVE, encoding="utf-8")
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path / "cache"))
    run = f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    done = run_in_forks([run, run])
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1].split()
    own = [name.replace(".", "/") for name in loaded if name.partition(".")[0] == PACKAGE.name]
    places = [name.removeprefix(f"{PACKAGE.name}/") for name in own]
    modules = [place for place in places if not (PACKAGE / place).is_dir()]
    needless = [one for one in modules if _is_late(one) and not _is_within(one, ON_PROCESSOR)]
    assert needless == []
    above = {one for one in PARTS if one not in PARTS["solver"].split()} - {"solver"}
    assert {place.partition("/")[0] for place in places} & above == set()
    assert {"cupy", "matplotlib", "plotly", "rich"} & set(loaded) == set()
    assert len(own) <= MAX_PLAIN, f"{len(own)} modules"


def test_importing_caspar_loads_nothing_heavy() -> None:
    program = f"import sys, caspar; print([n for n in {HEAVY} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.stdout.strip() == "[]"


@for_each(MODULES)
def test_files_and_functions_are_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_FILE_LINES, f"{_name(path)}: {lines} lines, allowed {MAX_FILE_LINES}"
    long_functions = [
        f"{_name(path)}:{node.lineno}: {node.name} has {size} lines, allowed {MAX_FUNCTION_LINES}"
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and (size := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert not long_functions, "\n".join(long_functions)


def test_no_file_names_a_folder_of_one_machine() -> None:
    """Home and work folders of whoever wrote a file mean nothing to whoever reads it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    machine_path = re.compile(rb"(?<![\w.])/(?:home|root|Users|work)/\w")
    found = [
        f"{name}:{number}: {line.decode(errors='replace').strip()}"
        for name in filter(None, listed.stdout.split("\0"))
        if (ROOT / name).is_file()
        for number, line in enumerate((ROOT / name).read_bytes().split(b"\n"), 1)
        if b"\0" not in line and machine_path.search(line)
    ]
    assert not found, "\n".join(found)


# Modules that compare the name of a target: what chooses one, and what tells where an array is.
ASKS_FOR_TARGETS = (
    *("arrays/convert.py", "cli/inspect.py", "kernels/profile.py"),
    *("runtime/cuda/memory.py", "runtime/select.py", "torch/functions.py"),
)


def test_decisions_do_not_ask_for_the_name_of_a_target() -> None:
    """They are fields of `Dialect` and `BackendTraits`: another target is another row."""
    asks = [
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        if re.search(r"""[!=]= ["'](cuda|cpu)["']""", path.read_text(encoding="utf-8"))
    ]
    assert set(asks) <= set(ASKS_FOR_TARGETS)
