"""Machine code of the processor: compiled by LLVM, kept as object files in caspar's store.

Input: LLVM IR. Output: the addresses of its functions, which stay for as long as the process.

Cost: a millisecond to load a function that is stored.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Sequence
from ctypes.util import find_library
from functools import cache
from typing import Any

import llvmlite
from llvmlite import binding as llvm

from caspar.codegen.llvm.instructions import EXTERNAL
from caspar.errors import CompileError, OptionError
from caspar.runtime.cache import read_entry, write_entry
from caspar.runtime.cpu.threads import system_functions

KIND = "code"

PROCESSOR_VARIABLE = "CASPAR_CPU"
"""The environment variable that names one of LEVELS to compile for, with features to add or leave
out in LLVM's words: `x86-64-v3,-fma`. Not set: the processor that caspar runs on."""

LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
"""Levels of x86-64, as LLVM names them."""

_ENGINES: list[Any] = []
"""Engines that hold the code, one for each object file."""


def load_code(key: str, symbols: Sequence[str]) -> list[int] | None:
    """The addresses of functions, stored under a text that determines them; or None."""
    code = read_entry(KIND, f"{_platform()} {key}")
    return None if code is None else _addresses(code, symbols)


def compile_code(key: str, symbols: Sequence[str], module: str) -> list[int]:
    """Compile functions of LLVM IR and store them under a text that determines them."""
    code = _compiled(module)
    write_entry(KIND, f"{_platform()} {key}", code)
    return _addresses(code, symbols)


def _compiled(text: str) -> bytes:
    machine = _target_machine()
    try:
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM does not take a kernel: {error}") from error
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code


def _addresses(code: bytes, symbols: Sequence[str]) -> list[int]:
    _add_symbols()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _new_target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    addresses = [engine.get_function_address(symbol) for symbol in symbols]
    _ENGINES.append(engine)
    return addresses


@cache
def _processor() -> tuple[str, str]:
    """The processor that code is made for, and its features, in LLVM's words."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return chosen_processor() or (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def chosen_processor() -> tuple[str, str] | None:
    """The level of x86-64 and the features that the environment names; None: none.

    Raises an `OptionError` if there is no such level.
    """
    text = os.environ.get(PROCESSOR_VARIABLE, "")
    name, _, features = text.partition(",")
    if text == "":
        return None
    if name not in LEVELS:
        raise OptionError(
            f"{PROCESSOR_VARIABLE}={text!r} in the environment: must be one of {', '.join(LEVELS)}"
        )
    return name, features


@cache
def _platform() -> str:
    """Return everything besides its source that machine code depends on."""
    return repr((llvmlite.__version__, llvm.get_process_triple(), *_processor()))


def _new_target_machine() -> Any:
    cpu, features = _processor()
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=cpu,
        features=features,
        opt=3,
        reloc="static" if is_x86 else "default",
        codemodel="jitdefault",
        jit=True,
    )


@cache
def _target_machine() -> Any:
    return _new_target_machine()


@cache
def _add_symbols() -> None:
    library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else find_library("m"))
    for name in EXTERNAL:
        function = getattr(library, name, None)
        if function is not None:
            llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    for name, address in system_functions().items():
        llvm.add_symbol(name, address)
