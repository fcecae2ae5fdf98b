"""A peer that moves nothing, or fails."""

from benchmarks.peers.worker import PeerProblem, PeerSolve, main


def solve(problem: PeerProblem, setting: str, seconds: float) -> PeerSolve:
    if setting == "fails":
        raise RuntimeError("it did not converge")
    trace = [(0.5 * seconds, 7.0), (seconds, 6.0)]
    return PeerSolve(problem.cameras, problem.points, setting, 0.25, seconds, 2, None, 8.0, trace)


if __name__ == "__main__":
    main(solve, lambda: "1.2.3")
