"""What is compiled for GPUs is kept, refusals for size too; and what a search finds."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from caspar.codegen.cuda.header import COMPILE_OPTIONS, MIN_BLOCKS_OPTION
from caspar.codegen.source import KernelSource
from caspar.errors import CompileError
from caspar.runtime.nvidia import machine_code as own
from caspar.runtime.nvidia import resident_search
from caspar.runtime.nvidia.machine_code import (
    Choice,
    compile_together,
    compiled_architecture,
    keep_choice,
    kept_choice,
    machine_code,
)
from caspar.runtime.nvidia.nvrtc import CompiledText, compile_text
from caspar.runtime.nvidia.resident_search import search, size_question

SCALED = 'extern "C" __global__ void scaled(float* x) { x[threadIdx.x] *= 2.0f; }'
TOO_LARGE = """
extern "C" __global__ void wide(double* x) {
  __shared__ double kept[8192];
  kept[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = kept[8191 - threadIdx.x];
}
"""
WRONG = 'extern "C" __global__ void wrong() { nothing; }'


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that NVRTC has compiled."""
    texts: list[str] = []

    def counting(text: str, arch: str, options: tuple[str, ...]) -> CompiledText:
        texts.append(text)
        return compile_text(text, arch, options)

    for module in (own, resident_search):
        monkeypatch.setattr(module, "compile_text", counting)
    return texts


def test_machine_code_is_compiled_once(compiled: list[str]) -> None:
    first = machine_code(SCALED, "sm_90", COMPILE_OPTIONS)
    assert first[:4] == b"\x7fELF"
    assert machine_code(SCALED, "sm_90", COMPILE_OPTIONS) == first
    assert compiled == [SCALED]


@pytest.mark.parametrize(
    "change",
    [
        lambda: machine_code(SCALED + " ", "sm_90", COMPILE_OPTIONS),
        lambda: machine_code(SCALED, "sm_80", COMPILE_OPTIONS),
        lambda: machine_code(SCALED, "sm_90", (*COMPILE_OPTIONS, "-DOTHER=1")),
    ],
)
def test_everything_that_matters_tells(change: Callable[[], bytes], compiled: list[str]) -> None:
    machine_code(SCALED, "sm_90", COMPILE_OPTIONS)
    change()
    assert len(compiled) == 2


def test_a_damaged_entry_is_compiled_again(tmp_path: Path, compiled: list[str]) -> None:
    first = machine_code(SCALED, "sm_90", COMPILE_OPTIONS)
    (entry,) = (tmp_path / "code").iterdir()
    content = bytearray(entry.read_bytes())
    content[-5] ^= 1
    entry.write_bytes(content)
    assert machine_code(SCALED, "sm_90", COMPILE_OPTIONS) == first
    assert len(compiled) == 2


def test_a_refusal_for_size_is_kept(compiled: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(CompileError, match="uses too much shared data"):
            machine_code(TOO_LARGE, "sm_90", COMPILE_OPTIONS)
    assert len(compiled) == 1


def test_other_refusals_are_not_kept(compiled: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(CompileError, match="nothing"):
            machine_code(WRONG, "sm_90", COMPILE_OPTIONS)
    assert len(compiled) == 2


def test_a_gpu_that_is_newer_than_the_compiler_gets_ptx() -> None:
    assert compiled_architecture("sm_90") == "sm_90"
    target = compiled_architecture("sm_999")
    assert target.startswith("compute_1")
    assert b".version" in machine_code(SCALED, "sm_999", COMPILE_OPTIONS)


def test_choices_are_of_one_text_architecture_and_question() -> None:
    choice = Choice(128, ("-DA=1", "-DB=2"), is_searched=True)
    keep_choice(SCALED, "sm_90", "which?", choice)
    assert kept_choice(SCALED, "sm_90", "which?") == choice
    for other in ((WRONG, "sm_90", "which?"), (SCALED, "sm_80", "which?"), (SCALED, "sm_90", "")):
        assert kept_choice(*other) is None


BUSY = """
#ifndef MIN_BLOCKS
#define MIN_BLOCKS
#endif
extern "C" __global__ void __launch_bounds__(256 MIN_BLOCKS) busy(float* x) {
  float kept[48];
  for (int i = 0; i < 48; ++i) kept[i] = x[i * 256 + threadIdx.x];
  for (int turn = 0; turn < 3; ++turn)
    for (int i = 0; i < 48; ++i) kept[i] = kept[i] * kept[(i + 7) % 48] + kept[(i + 13) % 48];
  for (int i = 0; i < 48; ++i) x[i * 256 + threadIdx.x] = kept[i];
}
"""
SOURCE = KernelSource("busy", BUSY, (), (256,), tiled=True)


def test_a_search_ends_at_the_most_blocks_without_spilling(compiled: list[str]) -> None:
    assert search(SOURCE, 256, "sm_90", lambda: True)
    found = kept_choice(BUSY, "sm_90", size_question(256, is_settled=False))
    assert found is not None
    assert found.is_searched
    (option,) = found.options
    number = int(option.rpartition(",")[2])
    assert option == MIN_BLOCKS_OPTION.format(number)

    def resources(blocks: int) -> int:
        text = compile_text(BUSY, "sm_90", (MIN_BLOCKS_OPTION.format(blocks),))
        return text.resources["busy"].stack_bytes

    assert resources(number) == 0
    assert resources(number + 1) > 0
    assert kept_choice(BUSY, "sm_90", size_question(256, is_settled=True)) is None
    num_compiled = len(compiled)
    assert not search(SOURCE, 256, "sm_90", lambda: True), "it is done"
    assert len(compiled) == num_compiled


def test_a_search_that_is_broken_off_keeps_nothing() -> None:
    assert not search(SOURCE, 256, "sm_90", lambda: False)
    assert kept_choice(BUSY, "sm_90", size_question(256, is_settled=False)) is None


def test_code_without_figures_ends_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(text: str, arch: str, options: tuple[str, ...]) -> CompiledText:
        return replace(compile_text(text, arch, options), resources={})

    monkeypatch.setattr(resident_search, "compile_text", silent)
    assert not search(SOURCE, 256, "sm_90", lambda: True)


def test_nothing_is_searched_for_an_unknown_gpu(compiled: list[str]) -> None:
    assert not search(SOURCE, 256, "sm_999", lambda: True)
    assert compiled == []


class TestTogether:
    OTHER = SCALED.replace("scaled", "other")

    def test_texts_are_compiled_as_one(self, compiled: list[str]) -> None:
        compile_together([SCALED, self.OTHER], "sm_90", COMPILE_OPTIONS)
        assert len(compiled) == 1
        for text, name in ((SCALED, b"scaled"), (self.OTHER, b"other")):
            assert name in machine_code(text, "sm_90", COMPILE_OPTIONS)
        assert len(compiled) == 1

    def test_without_a_store(self, compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(own, "write_entry", lambda *_: None)
        compile_together([SCALED, self.OTHER], "sm_90", COMPILE_OPTIONS)
        machine_code(SCALED, "sm_90", COMPILE_OPTIONS)
        machine_code(self.OTHER, "sm_90", COMPILE_OPTIONS)
        assert len(compiled) == 1

    def test_what_is_stored_is_left_out(self, compiled: list[str]) -> None:
        machine_code(SCALED, "sm_90", COMPILE_OPTIONS)
        compile_together([SCALED, self.OTHER], "sm_90", COMPILE_OPTIONS)
        assert compiled == [SCALED]

    @pytest.mark.parametrize("bad", [WRONG, TOO_LARGE, SCALED.replace("2.0f", "3.0f")])
    def test_one_that_is_refused_spoils_no_other(self, bad: str, compiled: list[str]) -> None:
        """The last one has the name of another."""
        compile_together([SCALED, bad], "sm_90", COMPILE_OPTIONS)
        assert len(compiled) == 1
        assert b"scaled" in machine_code(SCALED, "sm_90", COMPILE_OPTIONS)
        assert len(compiled) == 2
