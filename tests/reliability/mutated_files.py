"""Read damaged files with caspar and with the judge, and compare: `python -m ... COUNT FOLDER`.

A finding is an exception that is no `FileFormatError`, a warning, a message that does not begin
with the path, a file that only one of both reads, or a number that differs.
"""

import math
import random
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from caspar.errors import FileFormatError
from caspar.io import BalProblem, PoseGraph, PoseGraphKind, read_bal, read_g2o
from tests.reliability import judge
from tests.reliability.mutations import BAL, G2O, damaged, packed


def compare(content: bytes, is_bal: bool, path: Path) -> str:
    """Write and read one file.

    Returns:
        "both read it", "both refuse it" or "undecided".

    Raises:
        AssertionError: A finding.
    """
    path.write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = read_bal(path) if is_bal else read_g2o(path)
    except FileFormatError as error:
        found = None
        message = str(error)
        assert message.startswith(str(path)), message
        assert message.isascii(), message
        assert len(message) < 700 + 3 * len(str(path)), message
    refusal = None
    try:
        text = judge.unpacked(content, path.suffix.lower())
        expected = judge.read_bal(text) if is_bal else judge.read_g2o(text)
    except judge.UndecidedError:
        return "undecided"
    except judge.RefusedError as error:
        refusal = str(error)
    if refusal is not None:
        assert found is None, f"only the judge refuses: {refusal}"
        return "both refuse it"
    assert found is not None, f"only caspar refuses: {message}"
    if isinstance(expected, judge.Bal):
        assert isinstance(found, BalProblem)
        _compare_bal(found, expected)
    else:
        assert isinstance(found, PoseGraph)
        _compare_graphs(found, expected)
    return "both read it"


def _compare_bal(found: BalProblem, expected: judge.Bal) -> None:
    np.testing.assert_array_equal(found.points, expected.points)
    np.testing.assert_array_equal(found.cameras[:, 4:], [row[3:] for row in expected.cameras])
    observations = np.array(expected.observations)
    np.testing.assert_array_equal(found.camera_index, observations[:, 0])
    np.testing.assert_array_equal(found.point_index, observations[:, 1])
    np.testing.assert_array_equal(found.pixels, observations[:, 2:])
    for quaternion, camera in zip(found.cameras[:, :4], expected.cameras, strict=True):
        angle = math.hypot(*camera[:3])
        factor = math.sin(0.5 * angle) / angle if angle > 0.0 else 0.5
        wanted = [*(factor * part for part in camera[:3]), math.cos(0.5 * angle)]
        # Half an ulp of a large angle turns by as much.
        np.testing.assert_allclose(quaternion, wanted, rtol=0, atol=1e-14 + 1e-15 * angle)
        assert abs(float(np.linalg.norm(quaternion)) - 1.0) < 1e-14


def _compare_graphs(found: PoseGraph, expected: judge.Graph) -> None:
    np.testing.assert_array_equal(found.ids, np.array(expected.ids, dtype=np.int64))
    assert set(found.ids[found.fixed].tolist()) == expected.fixed
    assert found.poses_from_edges == expected.is_chained
    ends = np.stack([found.ids[found.index_a], found.ids[found.index_b]], axis=1)
    np.testing.assert_array_equal(ends, np.array(expected.ends, dtype=np.int64).reshape(-1, 2))
    for mine, other in ((found.poses, expected.poses), (found.measurement, expected.measured)):
        width = found.kind.storage_dim
        wanted = np.array(other).reshape(-1, width)
        size = 1.0 + np.abs(wanted).max(initial=0.0)
        translation = 4 if width == 7 else 2
        np.testing.assert_allclose(mine[:, :translation], wanted[:, :translation], atol=1e-12)
        np.testing.assert_allclose(
            mine[:, translation:], wanted[:, translation:], rtol=1e-12, atol=1e-12 * size
        )
    is_plane = found.kind is PoseGraphKind.SE2
    for root, triangle in zip(found.sqrt_information, expected.information, strict=True):
        wanted = np.array(judge.matrix(triangle, is_plane))
        assert not np.tril(root, -1).any()
        scale = np.sqrt(np.diagonal(wanted))
        divisor = np.where(scale > 0.0, scale, 1.0)
        scaled = root / divisor
        np.testing.assert_allclose(
            scaled.T @ scaled, wanted / divisor / divisor[:, None], atol=1e-8
        )


def run(count: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Compare on many files.

    Args:
        count: Files.
        seed: Of the random damage.
        folder: Where to write them; those with findings stay.

    Returns:
        How often each outcome was, and the findings.
    """
    outcomes: Counter[str] = Counter()
    findings = []
    for index in range(count):
        generator = random.Random(f"{seed} {index}")
        is_bal = generator.random() < 0.4
        content, suffix = packed(
            damaged(BAL if is_bal else generator.choice(G2O), generator), generator
        )
        path = folder / f"{'bal' if is_bal else 'g2o'}{index}{suffix}"
        try:
            outcomes[compare(content, is_bal, path)] += 1
        except Exception as error:
            findings.append(f"{path}: {type(error).__name__}: {error}")
        else:
            path.unlink()
    return outcomes, findings


def main() -> int:
    """Print outcomes and findings."""
    outcomes, findings = run(int(sys.argv[1]), 0, Path(sys.argv[2]))
    print(dict(outcomes), f"{len(findings)} findings")
    print("\n".join(findings[:50]))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
