"""`caspar inspect`: kernels, or those of a factor, at any stage of the compiler: text, pictures."""

import argparse
import importlib.util
import os
import pkgutil
import sys
import traceback
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from rich.console import Console

import caspar
from caspar.cli.arguments import add_precision
from caspar.cli.exit_code import ExitCode
from caspar.cli.outputs import WrittenFiles, check_targets, chosen_paths
from caspar.errors import CasparError, OptionError
from caspar.io.replace import write_file
from caspar.options import Precision
from caspar.runtime.nvidia.nvrtc import DEFAULT_ARCHITECTURE

DEFAULT_STAGE = "resources"

DEFAULT_KERNEL = "linearize"
"""Shown where a stage needs one kernel of a factor and none is named: the largest, usually."""


_IMPORT_SYSTEM = ("<frozen importlib", importlib.__file__, pkgutil.__file__, caspar.__file__)
"""An error whose frames are all in these files says that there is no module of that name."""


def add_inspect(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to those of the program."""
    command = commands.add_parser(
        "inspect",
        help="show what a factor or kernel is compiled to, at any stage; no GPU is needed",
        description="Show what a factor or kernel is compiled to, at any stage of the compiler. "
        "No GPU is needed: stages from ptx on need the extra `inspect`.",
        epilog="exit code: 0 when it is shown, 2 for wrong usage or something missing",
    )
    command.add_argument(
        "function",
        metavar="FUNCTION",
        help="module:function or path/to/file.py:function, for example "
        "caspar.bundle_adjustment:snavely",
    )
    command.add_argument(
        "--stage",
        metavar="STAGE",
        help="trace, graph, the name of a graph pass, schedule, program, cuda, cpu, ptx, sass or "
        "resources (default: resources: registers, spills, instructions)",
    )
    command.add_argument(
        "--kernel",
        metavar="NAME",
        help="of a factor score, linearize, product, or a kernel of a node type such as "
        "Cam__retract (default: all for resources, else linearize)",
    )
    command.add_argument(
        "--target", choices=["cuda", "cpu"], help="what to compile for (default: cuda)"
    )
    add_precision(command, Precision.MIXED)
    command.add_argument(
        "--arch",
        default=DEFAULT_ARCHITECTURE,
        metavar="SM",
        help="architecture of machine code (default: %(default)s)",
    )
    _add_inspect_output(command)
    command.set_defaults(command=inspect_kernels)


def _add_inspect_output(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--svg", type=Path, metavar="PATH", help="draw the stage: those from graph to program"
    )
    command.add_argument(
        "--after", type=int, metavar="N", help="draw the schedule after N steps (default: all)"
    )
    command.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="NAME",
        help="draw only what this output of the kernel needs; may be given several times",
    )
    command.add_argument(
        "--diff",
        action="store_true",
        help="show what the pass named by --stage changed in the graph (default: every pass)",
    )
    command.add_argument(
        "--complete",
        action="store_true",
        help="show the source with the functions that all kernels have in common",
    )
    command.add_argument("--out", type=Path, metavar="PATH", help="write the text to a file")


def inspect_kernels(request: argparse.Namespace) -> ExitCode:
    """Print one stage, or write its text or picture to a file."""
    paths = chosen_paths(request, "svg", "out")
    found = load_function(request.function)
    check_targets(paths.items(), [("the file of the function", _source_file(request.function))])
    view = _view(request, _inspection(request, found))
    if not paths:
        _print(str(view))
        return ExitCode.SUCCESS
    files = WrittenFiles()
    texts = {
        path: _picture(request, view) if option == "--svg" else str(view)
        for option, path in paths.items()
    }
    files.write({path: partial(write_file, content=text.encode()) for path, text in texts.items()})
    files.print_failures(Console(stderr=True, highlight=False))
    return ExitCode.WRONG_INPUT if files.failures else ExitCode.SUCCESS


def _print(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        Console().on_broken_pipe()


def _inspection(
    request: argparse.Namespace, found: "caspar.Factor | caspar.Kernel"
) -> "caspar.inspect.FactorInspection | caspar.inspect.KernelInspection":
    target = request.target or ("cpu" if request.stage == "cpu" else "cuda")
    if isinstance(found, caspar.Factor):
        return found.inspect(request.precision, target, request.arch)
    if request.kernel is not None:
        raise OptionError(f"--kernel: {request.function} is a kernel itself; leave it out")
    dtype = "float64" if request.precision == "float64" else "float32"
    return found.inspect(dtype, target, request.arch)


def _view(
    request: argparse.Namespace,
    inspection: "caspar.inspect.FactorInspection | caspar.inspect.KernelInspection",
) -> "caspar.inspect.View":
    if isinstance(inspection, caspar.inspect.KernelInspection):
        kernel = inspection
    else:
        kernel = inspection.kernel(request.kernel or DEFAULT_KERNEL)
    stage = request.stage or DEFAULT_STAGE
    if request.complete and (request.diff or stage != kernel.target.name):
        raise OptionError("--complete: only the stages 'cuda' and 'cpu' have a complete source")
    if request.complete:
        return caspar.inspect.TextView(kernel.source.text)
    if request.diff:
        return kernel.changes(request.stage)
    if request.kernel is None and stage == "resources" and stage in kernel.stages:
        return inspection.resources
    return kernel.stage(stage)


def _picture(request: argparse.Namespace, view: "caspar.inspect.View") -> str:
    if isinstance(view, caspar.inspect.ScheduleView):
        return view.svg(request.after, request.output)
    if request.after is not None:
        raise OptionError("--after: only the picture of the stage 'schedule' shows steps")
    if isinstance(view, caspar.inspect.GraphView):
        return view.svg(request.output)
    if len(request.output) > 0:
        raise OptionError("--output: only pictures of graphs can be restricted to some outputs")
    if isinstance(view, caspar.inspect.ProgramView):
        return view.svg()
    if request.diff:
        raise OptionError("--svg: changes have no picture; leave out --diff to draw the graph")
    stage = request.stage or DEFAULT_STAGE
    raise OptionError(
        f"--svg: the stage {stage!r} has no picture; those from 'graph' to 'program' have"
    )


# -- the function ----------------------------------------------------------------------------------


def load_function(name: str) -> "caspar.Factor | caspar.Kernel":
    """Import a factor or a kernel: `module:function`, or `path/to/file.py:function`.

    The module is installed or in the working folder. A function without the decorator becomes a
    factor here. Raises an `OptionError` if there is no such thing.
    """
    place, _, function = name.rpartition(":")
    if place == "" or function == "":
        raise OptionError(
            f"{name!r}: write module:function or path/to/file.py:function, for example "
            "caspar.bundle_adjustment:snavely"
        )
    names = vars(_load(place))
    found = names.get(function)
    if isinstance(found, FunctionType):
        return caspar.factor(found)
    kinds = (caspar.Factor, caspar.Kernel)
    if isinstance(found, kinds):
        return found
    known = ", ".join(key for key, value in names.items() if isinstance(value, kinds))
    wrong = (
        "there is no such function"
        if found is None
        else "it is neither function, factor nor kernel"
    )
    raise OptionError(f"{name!r}: {wrong}; {place} has the factors and kernels: {known or 'none'}")


def _source_file(name: str) -> Path:
    place = name.rpartition(":")[0]
    return Path(getattr(sys.modules.get(place), "__file__", None) or place)


def _load(place: str) -> Any:
    try:
        if place.endswith(".py"):
            return _load_file(Path(place))
        sys.path.insert(0, os.getcwd())  # as `python -m` has it
        return pkgutil.resolve_name(place)
    except (CasparError, OSError):
        raise
    except Exception as error:  # the module is the user's code
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith((*_IMPORT_SYSTEM, __file__))
        ]
        if not frames:
            raise OptionError(f"{place!r}: there is no such module") from error
        where = f"{frames[-1].filename}:{frames[-1].lineno}"
        raise OptionError(
            f"{place} cannot be imported: {where}: {type(error).__name__}: {error}"
        ) from error


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise OptionError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"{path.stem}_inspected", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look themselves up there
    sys.path.insert(0, str(path.parent.absolute()))
    spec.loader.exec_module(module)
    return module
