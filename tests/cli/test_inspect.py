"""`caspar inspect` prints and draws stages; what is wrong is one message and exit code 2."""

import subprocess
import sys
from pathlib import Path

import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.cli.app import main
from caspar.cli.inspect import load_function
from caspar.codegen.targets import TARGETS
from caspar.errors import OptionError
from caspar.inspect import stage_names
from tests.inspect.cases import distance

SNAVELY = "caspar.bundle_adjustment:snavely"
CASES = "tests.inspect.cases:distance"

FACTOR = """
from dataclasses import dataclass
from typing import Annotated
import symforce.symbolic as sf
import caspar
from neighbour import SIZE

@dataclass
class Spot:
    place: sf.V2

@caspar.factor
def near(spot: Annotated[Spot, caspar.TunableShared]) -> sf.V2:
    return SIZE * spot.place

def far(spot: Annotated[Spot, caspar.TunableShared]) -> sf.V2:
    return spot.place / SIZE

@caspar.kernel
def twice(
    x: Annotated[sf.V2, caspar.ReadSequential],
) -> Annotated[sf.V2, caspar.WriteSequential]:
    return SIZE * x

number = 3
"""


@pytest.fixture
def factor_file(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("SIZE = 2\n")
    path = tmp_path / "my-factors.py"
    path.write_text(FACTOR)
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["inspect", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["inspect", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("caspar: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("stage", [name for name in stage_names("cuda") if name != "resources"])
def test_every_stage_prints_what_the_attribute_shows(
    stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = str(distance.inspect()["linearize"].stage(stage))
    assert printed(capsys, CASES, "--stage", stage) == expected


def test_kernel_precision_and_architecture_are_choices(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--kernel", "score", "--stage", "ptx", "--precision", "float64", "--arch", "sm_86")
    assert printed(capsys, SNAVELY, *options) == str(
        snavely.inspect("float64", arch="sm_86")["score"].ptx
    )


def test_the_processors_text_needs_no_target(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, SNAVELY, "--stage", "cpu")
    assert "def snavely__linearize(table, group):" in text
    graph = printed(capsys, SNAVELY, "--stage", "program", "--target", "cpu", "--kernel", "score")
    assert graph == str(snavely.inspect(target="cpu")["score"].program)


def test_the_source_can_be_complete(capsys: pytest.CaptureFixture[str]) -> None:
    for target in TARGETS:
        text = printed(capsys, SNAVELY, "--stage", target, "--complete")
        assert text == snavely.inspect(target=target)["linearize"].source.text


def test_what_passes_changed_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = snavely.inspect()["linearize"]
    assert printed(capsys, SNAVELY, "--diff") == str(kernel.changes())
    assert printed(capsys, SNAVELY, "--diff", "--stage", "sums") == str(kernel.changes("sums"))


@pytest.mark.reliability
def test_resources_of_all_kernels_are_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, CASES)
    for name in ("distance__score", "distance__linearize", "distance__product", "Spot__retract"):
        assert f"\n{name} " in text
    one = printed(capsys, CASES, "--kernel", "Spot__retract")
    assert "Spot__retract, computes in float64" in one
    assert "distance__score" not in one


def test_pictures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "picture.svg"
    kernel = snavely.inspect()["score"]
    options = (SNAVELY, "--kernel", "score", "--svg", str(path))
    for view in (kernel.graph, kernel.schedule, kernel.program):
        stage = type(view).__name__.removesuffix("View").lower()
        assert printed(capsys, *options, "--stage", stage) == ""
        assert path.read_text(encoding="utf-8") == view.svg()
    printed(capsys, *options, "--stage", "schedule", "--after", "3", "--output", "cost")
    assert "score: schedule: 3 of " in path.read_text(encoding="utf-8")
    assert "store residual[0]" not in path.read_text(encoding="utf-8")


def test_text_can_go_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, picture = tmp_path / "program.txt", tmp_path / "program.svg"
    options = ("--stage", "program", "--out", str(text), "--svg", str(picture))
    assert printed(capsys, SNAVELY, *options) == ""
    assert text.read_text(encoding="utf-8") == str(snavely.inspect()["linearize"].program)
    assert picture.read_text(encoding="utf-8").startswith("<svg ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stage", "nothing"], "stage='nothing': the stages for cuda are trace, graph"),
        (["--stage", "ptx", "--target", "cpu"], "stage='ptx': the stages for cpu are"),
        (["--stage", "resources", "--target", "cpu"], "stage='resources': the stages for cpu"),
        (
            ["--kernel", "retract"],
            "kernel='retract': may be Cam__retract or Point__retract; the kernels of",
        ),
        (["--stage", "ptx", "--arch", "sm_1"], "arch='sm_1': must be one of"),
        (["--stage", "cuda", "--svg", "x.svg"], "--svg: the stage 'cuda' has no picture"),
        (["--stage", "graph", "--svg", "x.svg", "--after", "1"], "--after: only"),
        (["--stage", "program", "--svg", "x.svg", "--output", "cost"], "--output: only"),
        (["--stage", "graph", "--svg", "x.svg", "--output", "y"], "outputs: 'y' is not written"),
        (["--stage", "schedule", "--svg", "x.svg", "--after", "99999"], "after=99999: must be"),
        (["--stage", "graph", "--diff"], "stage='graph': changes are those of a pass: powers, "),
        (["--diff", "--svg", "x.svg"], "--svg: changes have no picture"),
        (["--stage", "ptx", "--complete"], "--complete: only the stages 'cuda' and 'cpu'"),
        (["--diff", "--complete"], "--complete: only the stages 'cuda' and 'cpu'"),
        (["--stage", "trace", "--out", "no/such/folder/x"], "--out no/such/folder/x: there is no"),
    ],
)
def test_wrong_choices_say_what_is_allowed(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(capsys, SNAVELY, *options).startswith(f"caspar: {message}")
    assert list(tmp_path.iterdir()) == []


# -- the function ----------------------------------------------------------------------------------


def test_a_file_may_use_its_neighbours_and_a_plain_function(factor_file: Path) -> None:
    near, far = load_function(f"{factor_file}:near"), load_function(f"{factor_file}:far")
    assert isinstance(near, caspar.Factor)
    assert isinstance(far, caspar.Factor)
    assert str(near.inspect().trace).startswith("factor near: 2 residual rows")
    assert far.name == "far"


def test_a_kernel_is_found_too(factor_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"{factor_file}:twice"
    kernel = load_function(name)
    assert isinstance(kernel, caspar.Kernel)
    assert printed(capsys, name) == str(kernel.inspect().resources)
    for stage in ("trace", "program", "cuda"):
        assert printed(capsys, name, "--stage", stage) == str(kernel.inspect().stage(stage))
    options = ("--stage", "cpu", "--precision", "float64", "--complete")
    text = printed(capsys, name, *options)
    assert text == kernel.inspect("float64", "cpu").source.text
    assert "twice is a kernel itself; leave it out" in refused(capsys, name, "--kernel", "score")
    assert "nor kernel; " in (message := refused(capsys, f"{factor_file}:number"))
    assert message.endswith("has the factors and kernels: near, twice\n")


def test_a_module_of_the_working_folder_is_found(
    factor_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factor_file.rename(factor_file.with_name("factors_of_this_test.py"))
    monkeypatch.chdir(factor_file.parent)
    assert load_function("factors_of_this_test:near").name == "near"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("snavely", "'snavely': write module:function or path/to/file.py:function"),
        (":snavely", "write module:function"),
        ("caspar.no_such:f", "'caspar.no_such': there is no such module"),
        ("no_such_module:f", "'no_such_module': there is no such module"),
        ("no/such/file.py:f", "no/such/file.py: there is no such file"),
        ("no/such:f", "'no/such': there is no such module"),
        ("caspar.bundle_adjustment:Point", "it is neither function, factor nor kernel; .*snavely"),
        ("caspar.bundle_adjustment:f", "no such function; .* the factors and kernels: snavely"),
        ("caspar.errors:f", "no such function; .* has the factors and kernels: none"),
    ],
)
def test_what_is_not_found_is_said(name: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        load_function(name)


def test_an_error_in_the_users_module_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "broken.py"
    path.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(OptionError, match=r"broken\.py:2: ZeroDivisionError"):
        load_function(f"{path}:f")
    path.write_text("import a_module_that_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    for name in (str(path), "broken"):
        with pytest.raises(OptionError, match=r"broken\.py:1: ModuleNotFoundError"):
            load_function(f"{name}:f")


def test_a_wrong_name_of_caspar_names_the_users_line(tmp_path: Path) -> None:
    path = tmp_path / "misspelt.py"
    path.write_text("import caspar\ncaspar.facktor\n")
    with pytest.raises(OptionError, match=r"misspelt\.py:2: AttributeError: .*facktor"):
        load_function(f"{path}:f")


def test_a_reader_that_stops_early_is_no_error() -> None:
    program = f"from caspar.cli.app import main; main(['inspect', {SNAVELY!r}, '--stage', 'cuda'])"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    try:
        _, said = process.communicate(timeout=300.0)
    finally:
        process.kill()
    assert said == b""
    assert process.returncode == 1


def test_a_function_that_is_no_factor_is_told_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plain.py"
    path.write_text("def plain(x):\n    return x\n")
    assert "factor plain, argument x: not annotated" in refused(capsys, f"{path}:plain")
