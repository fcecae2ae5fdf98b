"""Start the workers of the peers, and turn their answers into measurements."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.measurement import Measurement, Setup, thinned
from benchmarks.peers.worker import PeerProblem, write_problem
from benchmarks.problems import Bundle

ROOT = Path(__file__).parents[2]
START_S = 120.0
"""Seconds a worker may take beside its solves: imports, reading, building, compiling."""


@dataclass(frozen=True)
class Peer:
    """A library to compare with.

    Attributes:
        name: In the tables and on the command line.
        module: Its worker.
        settings: Of the worker, each measured.
        max_observations: Of the problems it is given: on larger ones a solve takes minutes.
        drops_points_behind: Whether observations behind their camera count as zero.
        compiles: Whether the first solve of a process compiles.
    """

    name: str
    module: str
    settings: tuple[str, ...]
    max_observations: int
    drops_points_behind: bool
    compiles: bool = False


PEERS = (
    Peer(
        "GTSAM",
        "benchmarks.peers.gtsam_worker",
        ("Schur", "LevenbergMarquardt"),
        300_000,
        drops_points_behind=True,
    ),
    Peer(
        "Ceres",
        "benchmarks.peers.ceres_worker",
        ("SPARSE_SCHUR", "DENSE_SCHUR", "ITERATIVE_SCHUR"),
        800_000,
        drops_points_behind=True,
    ),
    Peer(
        "jaxls",
        "benchmarks.peers.jaxls_worker",
        # jaxls's own benchmark of bundle adjustment takes 1e2; on Trafalgar-21 1e-2 needs 6
        # iterations and 1e2 19
        (
            "dense_cholesky float64 1e-2",
            "dense_cholesky float64 1e2",
            "conjugate_gradient float64 1e2",
        ),
        300_000,
        drops_points_behind=False,
        compiles=True,
    ),
)


class PeerError(Exception):
    """A peer cannot be measured; the message says why."""


@dataclass(frozen=True)
class PeerHost:
    """Where and how long peers run.

    Attributes:
        python: Interpreter that has them.
        seconds: Of solves, for each peer, setting and problem.
        runs: Solves at most.
    """

    python: Path = Path(sys.executable)
    seconds: float = 60.0
    runs: int = 5


def peer_version(peer: Peer, host: PeerHost) -> str:
    """What the library calls itself.

    Raises:
        PeerError: It cannot be imported.
    """
    done = _run([str(host.python), "-m", peer.module, "--check"], START_S)
    return done.stdout.strip().splitlines()[-1]


def measure(peer: Peer, setting: str, problem: Bundle, host: PeerHost, folder: Path) -> Measurement:
    """Solve in a process of its own.

    Raises:
        PeerError: It fails, or takes far longer than `host.seconds`.
    """
    given, answer = folder / "problem.npz", folder / "answer.npz"
    write_problem(
        PeerProblem(
            problem.cameras,
            problem.points,
            problem.camera_index,
            problem.point_index,
            problem.pixels,
        ),
        given,
    )
    command = [str(host.python), "-m", peer.module, str(given), str(answer), "--setting", setting]
    _run(
        [*command, "--seconds", str(host.seconds), "--runs", str(host.runs)],
        START_S + 4.0 * host.seconds,
    )
    with np.load(answer) as stored:
        record = json.loads(str(stored["record"]))
        cameras, points = stored["cameras"], stored["points"]
    anew_s = record["setup_s"]
    compile_s = record["first_s"] - anew_s - record["solve_s"] if peer.compiles else None
    trace = tuple((float(time_s), float(cost)) for time_s, cost in record["trace"])
    behind = problem.num_behind() if peer.drops_points_behind else 0
    remark = f"{behind} observations behind their camera count as zero for it" if behind else ""
    return Measurement(
        solver=f"{peer.name} {setting}",
        problem=problem.name,
        num_observations=problem.num_observations,
        status=record["status"],
        initial_cost=record["initial_cost"],
        final_cost=problem.cost(cameras, points),
        reported_cost=min([record["initial_cost"], *(cost for _, cost in trace)]),
        num_iterations=record["num_iterations"],
        num_linear_iterations=record["num_linear_iterations"],
        linear_iteration_ms=None,
        outer_iteration_ms=None,
        setup=Setup(compile_s, anew_s, None),
        solve_s=record["solve_s"],
        runs=record["runs"],
        memory_bytes=None,
        device_bytes=None,
        remark=remark,
        trace=thinned(trace),
    )


def _run(command: list[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    # JAX would take three quarters of the device's memory at once
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    try:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"took more than {limit_s:.0f} s") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        reason = lines[-1] if len(lines) > 0 else f"exit status {error.returncode}"
        raise PeerError(reason) from None
    except OSError as error:
        raise PeerError(f"{command[0]}: {error}") from None
