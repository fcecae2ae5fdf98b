"""The examples run as their users run them, and find what they say."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import bundle_adjustment, multiple_factors, pose_graph

EXAMPLES = Path(bundle_adjustment.__file__).parent
NAMES = sorted(path.name for path in EXAMPLES.glob("*.py"))


def run(name: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh interpreter, whether or not caspar is installed."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    path = os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_script_runs(name: str) -> None:
    done = run(name)
    if name == "torch_tensors.py" and importlib.util.find_spec("torch") is None:
        assert done.returncode == 1
        assert done.stderr == "This example needs PyTorch: pip install torch\n"
        return
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("status        CONVERGED")


def test_bundle_adjustment_reaches_the_optimum(capsys: pytest.CaptureFixture[str]) -> None:
    result = bundle_adjustment.main()
    assert result.final_cost <= 30378.64 * (1.0 + 1e-6)
    assert str(result) in capsys.readouterr().out


def test_multiple_factors_finds_the_mount(capsys: pytest.CaptureFixture[str]) -> None:
    result = multiple_factors.main()
    assert result.status.is_success
    error = result.values["Mount"][0] - multiple_factors.TRUE_MOUNT
    assert abs(error[:4]).max() < 0.01
    assert abs(error[4:]).max() < 0.1
    assert str(result) in capsys.readouterr().out


def test_pose_graph_reaches_the_optimum() -> None:
    """137.91295 is where exact steps end, by a sparse factorisation of the same residuals."""
    result = pose_graph.main()
    assert result.status.is_success
    assert 2.0 * result.final_cost == pytest.approx(137.913, rel=1e-4)
    assert result.remarks == ()
