"""A kernel shown: a line, tables of arguments and resources, folded sources; bytes it moves."""

from typing import Annotated, Any
from xml.etree import ElementTree

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import BackendError, KernelError, OptionError
from caspar.ir.dtype import DType
from caspar.kernels.kernel import Kernel
from caspar.kernels.profile import Traffic, item_bytes, item_traffic, object_count
from caspar.memory.access import Options, WriteAccessor
from caspar.tables import WIDTH
from tests.kernels.patterns import read_kernel, write_kernel


@caspar.kernel(backend="cpu")
def mixed(
    seen: Annotated[sf.V3, caspar.ReadShared],
    shift: Annotated[sf.V3, caspar.ReadUnique],
    scale: Annotated[sf.Symbol, caspar.ReadStrided],
    path: Annotated[caspar.Pair[sf.V2], caspar.ReadPair],
) -> tuple[
    Annotated[sf.V2, caspar.AddSharedSum],
    Annotated[sf.Symbol, caspar.WriteIndexed],
    Annotated[sf.V2, caspar.WriteBlockSum(64)],
]:
    """Most kinds of access."""
    moved = scale * (seen + shift)
    return path[1] - path[0], moved[2], sf.V2(moved[0], moved[1])


@caspar.kernel(backend="cpu")
def twice(x: Annotated[sf.V3, caspar.ReadSequential]) -> Annotated[sf.V3, caspar.AddSequential]:
    """Add to what is there."""
    return 2 * x


def broken_kernel() -> Kernel:
    """Its signature is fine, running it is an error."""

    @caspar.kernel
    def broken(
        x: Annotated[sf.V3, caspar.ReadSequential],
    ) -> Annotated[sf.V3, caspar.WriteSequential]:
        return sf.V3(x[7], x[8], x[9])

    return broken


def rows_of(table: Any) -> dict[str, dict[str, str]]:
    """The cells of a table by the name in the first column, then by column."""
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


class TestLine:
    def test_names_types_and_access(self) -> None:
        assert repr(mixed) == (
            "kernel mixed(seen: V3 ReadShared, shift: V3 ReadUnique, scale: Symbol ReadStrided, "
            "path: Pair[V2] ReadPair) -> out0: V2 AddSharedSum, out1: Symbol WriteIndexed, "
            "out2: V2 WriteBlockSum(size=64)"
        )
        assert repr(twice) == "kernel twice(x: V3 ReadSequential) -> out: V3 AddSequential"

    def test_does_not_run_the_function(self) -> None:
        broken = broken_kernel()
        assert repr(broken) == "kernel broken(x: V3 ReadSequential) -> out: V3 WriteSequential"
        assert "traced" not in vars(broken)

    def test_a_wrong_signature_is_said(self) -> None:
        @caspar.kernel
        def unmarked(x: sf.V3) -> Annotated[sf.V3, caspar.WriteSequential]:
            return x

        assert repr(unmarked).startswith("kernel unmarked, which cannot be used: kernel unmarked, ")
        assert "argument x: has no marker" in repr(unmarked)


class TestTraffic:
    def test_of_reads(self) -> None:
        found = item_traffic(read_kernel(3).traced, DType.FLOAT32)
        by_name = {one.name: (one.read, one.written, one.index) for one in found}
        expected: dict[str, tuple[float, float, float]] = {
            **dict.fromkeys(("sequential", "strided", "backwards", "defaulted"), (16, 0, 0)),
            **dict.fromkeys(("pair", "pair_defaulted"), (16, 0, 0)),
            **dict.fromkeys(("indexed", "shared"), (16, 0, 4)),
            "unique": (0, 0, 0),
            "out7": (0, 24, 0),  # both halves of a pair
        }
        assert {name: by_name[name] for name in expected} == expected

    def test_of_writes(self) -> None:
        traced = write_kernel(5).traced
        found = item_traffic(traced, DType.FLOAT64)
        expected = {
            caspar.WriteSequential: (0, 40, 0),
            caspar.AddSequential: (40, 40, 0),
            caspar.WriteIndexed: (0, 40, 4),
            caspar.AddIndexed: (40, 40, 4),
            caspar.AddSharedSum: (40, 40, 4),
            caspar.WriteSum: (0, 0, 0),
            caspar.AddSum: (0, 0, 0),
            caspar.AddUnique: (0, 0, 0),
            caspar.WriteStrided: (0, 40, 0),
            caspar.AddStrided: (40, 40, 0),
            caspar.WritePair: (0, 40, 0),
            caspar.AddPair: (40, 40, 0),
            caspar.WriteBlockSum: (0, 40 / 64, 0),
            caspar.AddBlockSum: (40 / 256, 40 / 256, 0),
        }
        assert found[0] == Traffic("x", 40, 0, 0)
        for output, one in zip(traced.outputs, found[1:], strict=True):
            wanted = expected[type(output.access)]
            assert (one.read, one.written, one.index) == wanted, output.access
        assert {type(output.access) for output in traced.outputs} == set(expected)

    def test_padding_counts_as_it_lies_in_memory(self) -> None:
        sizes = {1: 4, 2: 8, 3: 16, 4: 16, 7: 32, 9: 36}
        for dim, size in sizes.items():
            (unpadded, *_) = item_traffic(write_kernel(dim).traced, DType.FLOAT32)
            assert unpadded.read == size
        traffic = item_traffic(write_kernel(3).traced, DType.FLOAT32)[:3]
        assert item_bytes(traffic) == 16 + 16 + 32

    def test_number_of_objects(self) -> None:
        found = {one.name: str(object_count(one.access)) for one in mixed.traced.inputs}
        assert found == {"seen": "m", "shift": "1", "scale": "n", "path": "n + 1"}
        assert str(object_count(caspar.WriteBlockSum(128))) == "n / 128"

    def test_an_option_of_the_call_may_decide(self) -> None:
        class Repeated(caspar.WriteSequential):
            """Its number of objects is known in a call only."""

            options = ("times",)

            def num_objects(self, count: int, options: Options) -> int:
                times: int = options["times"]
                return times * count

        assert str(object_count(Repeated())) == "m"


class TestTables:
    def test_a_row_for_each_argument(self) -> None:
        rows = rows_of(mixed.describe().accesses)
        assert list(rows) == ["seen", "shift", "scale", "path", "out0", "out1", "out2", "all"]
        assert rows["seen"] == {
            "argument": "seen",
            "type": "V3",
            "scalars": "3",
            "access": "ReadShared",
            "passed": "(m, 3), index (n,)",
            "read": "16",
            "written": "0",
            "index": "4",
        }
        assert {name: row["passed"] for name, row in rows.items()} == {
            "seen": "(m, 3), index (n,)",
            "shift": "(1, 3)",
            "scale": "(n,), offset=0, stride=1",
            "path": "(n + 1, 2)",
            "out0": "(m, 2) or size, index (n,)",
            "out1": "(m,) or size, index (n,)",
            "out2": "(n / 64, 2) or nothing",
            "all": f"{16 + 4 + 4 + 8 + 16 + 4 + 4 + 4 + 8 / 64:g} bytes together",
        }
        assert rows["path"]["type"] == "Pair[V2]"
        assert rows["out2"]["access"] == "WriteBlockSum(size=64)"
        assert (rows["all"]["read"], rows["all"]["index"]) == ("36", "12")

    def test_bytes_are_those_of_the_type(self) -> None:
        assert rows_of(twice.describe().accesses)["out"]["read"] == "16"
        assert rows_of(twice.describe("float64").accesses)["out"]["read"] == "24"

    def test_resources_are_the_compilers(self) -> None:
        description = mixed.describe()
        kernel = mixed.inspect()
        figures = kernel.compiled.resources[kernel.name]
        facts = dict(description.resources.facts)  # type: ignore[union-attr]
        assert facts["compiled for"] == "sm_90, blocks of 256 threads"
        assert facts["registers"] == str(figures.registers)
        assert facts["shared memory"] == f"{figures.shared_bytes} bytes"
        assert facts["spilled"] == "0 bytes stored, 0 loaded"
        held = kernel.usage.occupancies[256]
        assert facts["occupancy"].startswith(f"{held.fraction:.0%}: {held.warps} of 64 warps")
        size = rows_of(description.accesses)["all"]["passed"].removesuffix(" together")
        assert facts["items a thread"] == f"1, which move {size}"

    def test_small_items_share_a_thread(self) -> None:
        @caspar.kernel
        def half(
            x: Annotated[sf.Symbol, caspar.ReadSequential],
        ) -> Annotated[sf.Symbol, caspar.WriteSequential]:
            return x / 2

        facts = dict(half.describe().resources.facts)  # type: ignore[union-attr]
        assert facts["items a thread"] == "4, which move 32 bytes"

    def test_the_block_size_has_its_reason(self) -> None:
        facts = dict(twice.describe().resources.facts)  # type: ignore[union-attr]
        held = twice.inspect().usage.occupancies
        sizes = ", ".join(f"{size}: {one.warps}" for size, one in held.items())
        assert next(iter(held)) == 256
        assert facts["block size"] == f"256: most warps at once ({sizes})"

    def test_a_block_size_without_a_choice_says_so(self) -> None:
        @caspar.kernel
        def wide(
            x: Annotated[sf.V2, caspar.ReadSequential],
        ) -> Annotated[sf.V2, caspar.WriteBlockSum(1024)]:
            return x

        facts = dict(wide.describe().resources.facts)  # type: ignore[union-attr]
        only = "the only one that the access of its arguments allows"
        assert facts["block size"] == f"1024: {only}"

    def test_without_the_compiler_it_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise BackendError("NVRTC is not installed; pip install 'it'")

        monkeypatch.setattr("caspar.inspect.stages.compile_source", refuse)
        description = twice.describe()
        assert "not known: NVRTC is not installed; pip install" in str(description)
        assert "pip install 'it'</p>" in description._repr_html_().replace("&#x27;", "'")

    def test_text_fits(self) -> None:
        text = str(mixed.describe())
        assert text == repr(mixed.describe())
        first, *lines = text.splitlines()
        assert first == repr(mixed)
        assert all(len(line) <= WIDTH for line in lines)
        assert "kernel.inspect(target='cpu').cpu" in text

    def test_wrong_choices(self) -> None:
        with pytest.raises(OptionError, match="dtype='half': must be one of 'float32', 'float64'"):
            twice.describe("half")
        with pytest.raises(OptionError, match="arch='sm_1': must be one of"):
            str(twice.describe(arch="sm_1"))


class TestNotebook:
    def test_sources_are_folded(self) -> None:
        page = ElementTree.fromstring(mixed._repr_html_())
        assert "".join(page.find("code").itertext()) == repr(mixed)  # type: ignore[union-attr]
        folded = {one.findtext("summary"): one.findtext("pre") for one in page.iter("details")}
        assert folded == {
            "CUDA C": str(mixed.inspect().cuda),
            "for the processor": str(mixed.inspect(target="cpu").cpu),
        }
        tables = list(page.iter("table"))
        assert len(tables) == 2
        assert len(list(tables[0])) == 1 + 8

    def test_what_was_measured_last_is_shown(self) -> None:
        @caspar.kernel(backend="cpu")
        def own(
            x: Annotated[sf.V2, caspar.ReadSequential],
        ) -> Annotated[sf.V2, caspar.WriteSequential]:
            return x

        assert "measured last" not in own._repr_html_()
        profile = own.profile(np.ones((10, 2), np.float32), runs=1)
        assert own.describe().profile is profile
        assert str(own.describe()).endswith(f"\nmeasured last: {profile}")
        assert f"<p>measured last</p>{profile._repr_html_()}" in own._repr_html_()

    def test_an_error_is_shown(self) -> None:
        broken = broken_kernel()
        with pytest.raises(KernelError):
            broken.describe()
        assert "kernel broken" in broken._repr_html_()
        assert "IndexError" in broken._repr_html_()


class TestInspect:
    def test_stages(self) -> None:
        kernel = mixed.inspect()
        assert kernel.name == "mixed__kernel"
        assert str(kernel.trace).startswith("kernel mixed: 4 arguments, 3 outputs\n")
        assert "mixed__kernel(" in str(kernel.cuda)
        assert "def mixed__kernel(" in str(mixed.inspect(target="cpu").cpu)
        assert mixed.inspect("float64").spec.graph.dtype is DType.FLOAT64
        assert mixed.inspect(arch="sm_86").arch == "sm_86"

    def test_deterministic_is_as_of_the_kernel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []

        def in_kernel(self: WriteAccessor, options: Options, is_atomic: bool) -> WriteAccessor:
            asked.append((dict(options), is_atomic))
            return self

        monkeypatch.setattr("caspar.memory.patterns.AddSequential.in_kernel", in_kernel)
        twice.inspect()
        twice.inspect(deterministic=True)
        write_kernel(2, deterministic=True).inspect(target="cpu")
        assert asked == [({}, True), ({}, False), ({}, False)]

    def test_wrong_choices(self) -> None:
        with pytest.raises(OptionError, match="target='gpu': must be one of 'cuda', 'cpu'"):
            twice.inspect(target="gpu")
        with pytest.raises(OptionError, match="dtype=None: must be one of"):
            twice.inspect(None)  # type: ignore[arg-type]
