"""Finds the kernels of a CUDA source and wraps the source as a C++ translation unit.

The text is preprocessed first, so that comments, `#if` and macros are dealt with by the compiler;
what each parameter is, the C++ compiler says later (native/kernel_table.h).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tests.harness.errors import HarnessError

SOURCE_NAME = "kernel.cu"

_BOUNDS = re.compile(r"__launch_bounds__\s*\(\s*(\d*)[^()]*\)")
_SIGNATURE = re.compile(r"\b(\w+)\s*\((.*)\)\s*$", re.DOTALL)
_DYNAMIC_SHARED = re.compile(r"\bextern\s+__shared__|\b__shared__\s+extern\b")


@dataclass(frozen=True)
class KernelSignature:
    """What the text says of one kernel. `max_threads` is its `__launch_bounds__`, if any."""

    name: str
    parameter_names: tuple[str, ...]
    max_threads: int | None


def find_kernels(preprocessed: str) -> tuple[KernelSignature, ...]:
    """Return the kernels defined in `preprocessed`, in order; kernel templates are left out."""
    if _DYNAMIC_SHARED.search(preprocessed):
        raise HarnessError(
            "dynamic shared memory (extern __shared__) is not supported by the harness; "
            "give the shared array a constant size"
        )
    kernels: dict[str, KernelSignature] = {}
    for match in re.finditer(r"\b__global__\b", preprocessed):
        end = re.compile(r"[;{]").search(preprocessed, match.end())
        before = re.split(r"[;{}]", preprocessed[: match.start()])[-1]
        if end is None or end.group() == ";" or re.search(r"\btemplate\b", before):
            continue
        signature = _parse_signature(before + preprocessed[match.end() : end.start()])
        kernels[signature.name] = signature
    if not kernels:
        raise HarnessError("the source defines no __global__ function")
    return tuple(kernels.values())


def _parse_signature(text: str) -> KernelSignature:
    bounds = _BOUNDS.search(text)
    match = _SIGNATURE.search(_BOUNDS.sub("", text))
    if match is None:
        raise HarnessError(f"cannot read the signature of a kernel: {' '.join(text.split())!r}")
    names = tuple(_last_word(part) for part in _split_parameters(match.group(2)))
    max_threads = None
    if bounds is not None and bounds.group(1) != "":
        max_threads = int(bounds.group(1))
    return KernelSignature(match.group(1), names, max_threads)


def _split_parameters(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += (character in "(<[") - (character in ")>]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip() not in ("", "void")]


def _last_word(parameter: str) -> str:
    words: list[str] = re.findall(r"\w+", parameter)
    return words[-1] if words else "?"


def translation_unit(sources: Sequence[str], kernels: Sequence[KernelSignature]) -> str:
    """Return the C++ text that holds sources unchanged, and a table of their kernels."""
    texts = "\n".join(f'#line 1 "{SOURCE_NAME}"\n{source}' for source in sources)
    entries = "\n".join(
        f'    cuda_on_cpu::Entry<&{kernel.name}>::named("{kernel.name}"),' for kernel in kernels
    )
    return f"""#include "cuda_on_cpu.h"
namespace {{
{texts}
#line 1 "kernel table"
}}
extern "C" __attribute__((visibility("default")))
const cuda_on_cpu::Kernel cuda_on_cpu_kernels[] = {{
{entries}
}};
extern "C" __attribute__((visibility("default")))
const unsigned cuda_on_cpu_num_kernels = {len(kernels)};
"""
