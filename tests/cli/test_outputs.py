"""Files of the command line: refused before the solve, whole or unchanged after it."""

import contextlib
import dataclasses
import errno
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import caspar.cli.outputs
import caspar.colmap.files.folder
import caspar.io.replace
from caspar.cli.outputs import WrittenFiles, write_json
from caspar.colmap import write_model
from caspar.io import read_bal, write_bal
from caspar.io.replace import open_for_packing, write_file
from tests.cli.fake_solver import FakeSolver, run
from tests.colmap.models import tiny
from tests.examples import make_bal_problem
from tests.io.interrupted_steps import InterruptAt, contents

FACTOR = """\
import symforce.symbolic as sf

import caspar

@caspar.factor
def residual(x: sf.V2) -> sf.V2:
    return x
"""


IN_A_PROCESS = """\
import sys
import caspar
from tests.cli import fake_solver

caspar.Solver = fake_solver.FakeSolver
sys.exit(fake_solver.run(*sys.argv[1:]))
"""

NAMES_IN_A_PROCESS = """\
import os
import sys
import caspar
from tests.cli import fake_solver

caspar.Solver = fake_solver.FakeSolver
path = sys.argv[1]
for name in sys.argv[2:]:
    renamed = os.path.join(os.path.dirname(path), name)
    os.rename(path, renamed)
    assert fake_solver.run("bal", renamed, "--json", f"{renamed}.json") == 0
    path = renamed
    print("END")
"""


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.txt"
    write_bal(path, make_bal_problem())
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(*arguments) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("link", [os.link, os.symlink], ids=["hard", "symbolic"])
@pytest.mark.parametrize("option", ["--json", "--out"])
def test_an_output_that_is_the_problem(
    solver: type[FakeSolver],
    problem: Path,
    capsys: pytest.CaptureFixture[str],
    link: Any,
    option: str,
) -> None:
    """By any name, and before anything is solved."""
    before = problem.read_bytes()
    output = problem.with_name("output.txt")
    link(problem, output)
    for read, written in ((problem, output), (output, problem), (output, output)):
        said = refused(capsys, "bal", read, option, written)
        assert said == f"caspar: {option} {written}: this is the problem itself; name another\n"
    assert solver.made == []
    assert problem.read_bytes() == before


@pytest.mark.parametrize("link", [os.link, os.symlink], ids=["hard", "symbolic"])
def test_two_outputs_that_are_one_file(
    solver: type[FakeSolver], problem: Path, capsys: pytest.CaptureFixture[str], link: Any
) -> None:
    first, second = problem.with_name("a.json"), problem.with_name("b.txt")
    if link is os.link:
        first.write_bytes(b"old")
    link(first, second)
    said = refused(capsys, "bal", problem, "--json", first, "--out", second)
    assert said.endswith("this is also the file of --json; name another\n")
    assert solver.made == []


def test_dangling_link_into_no_folder(
    solver: type[FakeSolver], problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = problem.with_name("link.json")
    link.symlink_to("none/file.json")
    assert "there is no folder" in refused(capsys, "bal", problem, "--json", link)
    assert solver.made == []


def test_standard_input_and_output(
    solver: type[FakeSolver], problem: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A FIFO as problem, /dev/stdout as file."""
    fifo = problem.with_name("fifo")
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(problem.read_bytes()), daemon=True)
    writer.start()
    assert run("bal", fifo, "--quiet", "--json", "/dev/stdout") == 0
    writer.join(20.0)
    assert json.loads(capfd.readouterr().out)["problem"]["cameras"] == 3


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names of any bytes")
@pytest.mark.parametrize("encoding", ["ascii:strict", "utf-8:strict"])
def test_names_that_the_terminal_cannot_show(problem: Path, encoding: str) -> None:
    """The files are written and named; nothing ends by their names."""
    names = ("\u00e4.txt", os.fsdecode(b"\xff.txt"))
    found = subprocess.run(
        [sys.executable, "-c", NAMES_IN_A_PROCESS, problem, *names],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=True,
        timeout=500,
    )
    said = found.stdout.split(b"END\n")
    assert len(said) == len(names) + 1
    for name, one in zip(names, said[:-1], strict=True):
        assert b".txt.json" in one.splitlines()[-1]
        output = problem.with_name(f"{name}.json")
        assert json.loads(output.read_text())["status"] == "converged_cost"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("reader", ["full disk", "closed pipe"])
def test_failures_are_said_if_the_report_cannot_be_printed(problem: Path, reader: str) -> None:
    output = problem.with_name("solved.txt")
    with contextlib.ExitStack() as stack:
        if reader == "full disk":
            stdout = stack.enter_context(open("/dev/full", "wb")).fileno()
        else:
            reading, stdout = os.pipe()
            os.close(reading)
            stack.callback(os.close, stdout)
        found = subprocess.run(
            [
                *(sys.executable, "-c", IN_A_PROCESS, "bal", problem),
                *("--json", "/dev/full", "--out", output),
            ],
            cwd=Path(__file__).parents[2],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=500,
        )
    assert "caspar: /dev/full is not written: [Errno 28] No space" in found.stderr
    if reader == "full disk":
        assert "caspar: the report is not written: [Errno 28] No space" in found.stderr
        assert found.returncode == 2
    assert "Traceback" not in found.stderr
    assert read_bal(output).num_cameras == 3


def written_anew(folder: Path, writers: Mapping[Path, Callable[[Path], None]]) -> Any:
    """What writers leave in an empty folder."""
    folder.mkdir()
    for path, writer in writers.items():
        writer(folder / path.name)
    return contents(folder)


def test_a_failure_while_files_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then no output is written, whichever could not be replaced."""
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path in paths:
        path.write_bytes(b"old")
    renamed = os.replace

    def failing(old: str, new: str) -> None:
        if new == str(paths[1]) and old.endswith(".tmp"):
            raise OSError(errno.EBUSY, "Device or resource busy")
        renamed(old, new)

    monkeypatch.setattr(os, "replace", failing)
    files = WrittenFiles()
    files.write({path: lambda path: write_file(path, b"new") for path in paths})
    assert files.paths == []
    assert [path for path, _ in files.failures] == paths
    assert all("resource busy; nothing is written" in wrong for _, wrong in files.failures)
    assert contents(tmp_path) == {"a": b"old", "b": b"old", "c": b"old"}


class TestColmap:
    """`caspar colmap IN OUT`: every file that is read against every file that is written."""

    @pytest.fixture
    def folders(self, tmp_path: Path) -> tuple[Path, Path]:
        model, out = tmp_path / "in", tmp_path / "out"
        write_model(tiny(), model)
        out.mkdir()
        return model, out

    @pytest.mark.parametrize("link", [os.link, os.symlink], ids=["hard", "symbolic"])
    @pytest.mark.parametrize("name", ["cameras.bin", "points3D.bin", "frames.bin"])
    @pytest.mark.parametrize("is_turned", [False, True])
    def test_a_file_of_the_output_that_is_one_of_the_input(
        self,
        folders: tuple[Path, Path],
        capsys: pytest.CaptureFixture[str],
        link: Any,
        name: str,
        is_turned: bool,
    ) -> None:
        model, out = folders
        link(model / name, out / name)
        before = contents(model)
        if is_turned:  # the input has the link
            for other in model.iterdir():
                if other.name != name:
                    other.rename(out / other.name)
            model, out = out, model
        said = refused(capsys, "colmap", model, out)
        assert said == f"caspar: OUT {out / name}: this is a file of the model; name another\n"
        assert contents(folders[0]) == before or is_turned

    def test_other_outputs(
        self, folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        model, out = folders
        places = out / "cameras.txt"
        places.write_text("a b.jpg 1 2 3\n")
        report = out.parent / "report.json"
        report.symlink_to(out / "images.bin")
        for arguments, said in (
            ((out, "--json", model / "images.bin"), "this is a file of the model"),
            ((out, "--json", model / "rigs.txt"), "this is a file of the model"),
            ((out, "--json", out / "images.bin"), "this is also the file of OUT"),
            ((out, "--json", report), "this is also the file of OUT"),
            ((out, "--json", places, "--positions", places), "this is the file of positions"),
            ((out, "--format", "text", "--gps", places), "this is the file of positions"),
            ((out.parent / "new", "--json", out.parent / "new"), "this is the folder OUT"),
        ):
            assert said in refused(capsys, "colmap", model, *arguments)
        assert places.read_text() == "a b.jpg 1 2 3\n"
        assert os.listdir(out) == ["cameras.txt"]

    def test_a_name_that_the_output_cannot_hold(
        self, folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Before the solve, which may take hours."""
        model, out = folders
        images = dataclasses.replace(tiny().images, names=("a\nb", "b", "c"))
        write_model(dataclasses.replace(tiny(), images=images), model)
        said = refused(capsys, "colmap", model, out, "--format", "text")
        assert "'a\\nb' of image 4 cannot be written as text" in said
        assert "adjusting" not in said
        assert os.listdir(out) == []


class TestInterrupts:
    """Ctrl-C while files are written."""

    def test_in_the_second_file(
        self,
        solver: type[FakeSolver],
        monkeypatch: pytest.MonkeyPatch,
        problem: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """The first does not take its place, the second is removed, the third does not begin."""

        @contextlib.contextmanager
        def interrupted(path: Path) -> Iterator[Any]:
            with open_for_packing(path) as stream:
                yield stream
                raise KeyboardInterrupt

        paths = [problem.with_name(name) for name in ("a.json", "b.ply", "c.png")]
        paths[1].write_bytes(b"old")
        monkeypatch.setattr("caspar.io.ply.open_for_packing", interrupted)
        arguments = zip(("--json", "--out", "--plot"), paths, strict=True)
        assert run("bal", problem, "--quiet", *(part for pair in arguments for part in pair)) == 130
        assert capsys.readouterr().err == ("caspar: interrupted; nothing is written\n")
        assert paths[1].read_bytes() == b"old"
        assert sorted(os.listdir(problem.parent)) == ["b.ply", "problem.txt"]

    def test_after_the_files(
        self,
        solver: type[FakeSolver],
        monkeypatch: pytest.MonkeyPatch,
        problem: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """While the report is printed: "nothing is written" would be wrong."""

        def interrupted(*arguments: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("caspar.cli.outputs.text_report", interrupted)
        path = problem.with_name("solved.txt")
        assert run("bal", problem, "--out", path) == 130
        assert capsys.readouterr().err.endswith(f"caspar: interrupted; written: {path}\n")
        assert read_bal(path).num_cameras == 3

    def test_before_the_first(self) -> None:
        def interrupted(path: Path) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt, match=r"^interrupted; nothing is written$"):
            WrittenFiles().write({Path("a"): interrupted})

    @pytest.mark.filterwarnings(
        "ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning"
    )
    @pytest.mark.parametrize("exists", [True, pytest.param(False, marks=pytest.mark.reliability)])
    def test_between_any_two_steps(self, tmp_path: Path, exists: bool) -> None:
        """All outputs are old or all are new, a folder among them, and the message is true."""
        modules = (caspar.io.replace, caspar.cli.outputs, caspar.colmap.files.folder, contextlib)
        traced = {str(module.__file__) for module in modules}
        model = tiny(with_rigs=False)
        old = {"a.json": b"old", "b.txt": b"old"}
        ends: list[bool] = []
        said: str | None = ""
        while said is not None:
            folder = tmp_path / str(len(ends))
            folder.mkdir()
            if exists:
                for name, content in old.items():
                    (folder / name).write_bytes(content)
            writers: dict[Path, Callable[[Path], None]] = {
                folder / "model": lambda path: write_model(model, path),
                folder / "a.json": lambda path: write_json(path, {}),
                folder / "b.txt": lambda path: write_bal(path, make_bal_problem()),
            }
            files = WrittenFiles()
            said = InterruptAt(traced, len(ends)).run(partial(files.write, writers))
            found = contents(folder)
            assert found is not None
            is_new = found == (
                contents(tmp_path / "new") or written_anew(tmp_path / "new", writers)
            )
            assert is_new or found == (old if exists else {})
            assert is_new or not (folder / "model").exists()
            if said is not None:
                names = ", ".join(map(str, writers))
                state = f"written: {names}" if is_new else "nothing is written"
                said = said or files.when_interrupted()  # as the commands do
                assert said == f"interrupted; {state}"
                ends.append(is_new)
        assert is_new
        assert ends.count(False) > 400
        assert ends.count(True) > 10
        gc.collect()  # files that an interrupt left open, while warnings of them are ignored

    def test_failures_are_kept(self, tmp_path: Path) -> None:
        """One file after the other, whatever happens to the one before."""
        files = WrittenFiles()
        files.write(
            {
                tmp_path / "none" / "a": lambda path: write_file(path, b""),
                tmp_path / "b": lambda path: write_file(path, b""),
            }
        )
        assert files.paths == [tmp_path / "b"]
        assert [path for path, _ in files.failures] == [tmp_path / "none" / "a"]
        assert "there is no folder" in files.failures[0][1]


class TestInspect:
    """`caspar inspect --out --svg`."""

    def test_an_output_that_is_the_source(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = tmp_path / "factor.py"
        source.write_text(FACTOR)
        os.link(source, tmp_path / "hard.svg")
        name = f"{source}:residual"
        for option, path in (("--out", source), ("--svg", tmp_path / "hard.svg")):
            said = refused(capsys, "inspect", name, "--stage", "graph", option, path)
            assert (
                said == f"caspar: {option} {path}: this is the file of the function; name another\n"
            )
        assert source.read_text() == FACTOR

    def test_an_output_that_is_the_module(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A module of the working folder, by its name; of a package too."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", sys.path.copy())
        package = tmp_path / "package_to_inspect"
        package.mkdir()
        for place in ("module_to_inspect", f"{package.name}.inner"):
            source = tmp_path / f"{place.replace('.', '/')}.py"
            source.write_text(FACTOR)
            (tmp_path / "link.txt").unlink(missing_ok=True)
            (tmp_path / "link.txt").symlink_to(source)
            for path in (source, Path("link.txt")):
                said = refused(capsys, "inspect", f"{place}:residual", "--out", path)
                assert f"--out {path}: this is the file of the function" in said
            assert source.read_text() == FACTOR

    def test_text_and_picture_in_one_file(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "a"
        options = ("--svg", path, "--out", tmp_path / "." / "a")
        said = refused(capsys, "inspect", "caspar.bundle_adjustment:snavely", *options)
        assert "this is also the file of --svg" in said
        assert not path.exists()

    def test_a_full_disk(self, capsys: pytest.CaptureFixture[str]) -> None:
        if not os.path.exists("/dev/full"):
            pytest.skip("no /dev/full")
        options = ("--stage", "trace", "--out", "/dev/full")
        said = refused(capsys, "inspect", "caspar.bundle_adjustment:snavely", *options)
        assert said.startswith("caspar: /dev/full is not written: [Errno 28] No space left")
