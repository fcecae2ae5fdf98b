"""Graphs that grow pose by pose, and windows that slide, beside solves of the whole."""

import copy
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import caspar
from caspar.live import block_factorization, gaussian, incremental
from caspar.live.block_factorization import MAX_BLOCK, BlockFactorization
from caspar.live.gaussian import eliminated
from caspar.live.linearization import RowGroup

Rows = NDArray[np.float64]
Integers = NDArray[np.int64]


class Mark(sf.V3): ...


each = {"sigma": caspar.ConstSequential}
odometry = caspar.factors.between(sf.Pose2, name="odometry", markers=each)
start = caspar.factors.prior(sf.Pose2, name="start")
motion = caspar.factors.between(sf.Pose3, name="motion")
begin = caspar.factors.prior(sf.Pose3, name="begin")


@caspar.factor
def sight(
    pose: Annotated[sf.Pose3, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    x, y, z = pose.inverse() * mark
    return 100 * (sf.V2(x / z, y / z) - pixel)


def _pose2(x: float, y: float, angle: float) -> Rows:
    return np.array([[np.cos(angle), np.sin(angle), x, y]])


def _groups(rng: np.random.Generator, count: int, first: int, last: int) -> RowGroup:
    columns = rng.integers(first, last, size=(count, 4))
    return RowGroup(rng.normal(size=(count, 3)), columns, rng.normal(size=(count, 3, 4)))


def _dense(groups: list[RowGroup], num_unknowns: int) -> Rows:
    """The Jacobian; a block of rows may name an unknown twice."""
    parts = []
    for group in groups:
        found = np.zeros((*group.residual.shape, num_unknowns))
        for column in range(group.columns.shape[1]):
            block, row = np.indices(group.residual.shape)
            found[block, row, group.columns[:, column, None]] += group.entries[:, :, column]
        parts.append(found.reshape(-1, num_unknowns))
    return np.concatenate(parts)


@pytest.mark.parametrize("size", range(1, MAX_BLOCK + 1))
def test_blocks_are_solved_as_a_dense_matrix(size: int) -> None:
    """While unknowns come, in the order that was found and in others, and after rows are gone."""
    rng = np.random.default_rng(size)
    factorization = BlockFactorization(size)

    def rows(count: int, first: int, last: int) -> RowGroup:
        group = _groups(rng, count, first, last)
        columns = (group.columns[:, :, None] * size + np.arange(size)).reshape(count, -1)
        return RowGroup(group.residual, columns, rng.normal(size=(count, 3, 4 * size)))

    groups: list[RowGroup] = []
    for step in range(12):
        num_unknowns = (20 + 5 * step if step < 11 else 30) * size
        new = rows(20, 5 * min(step, 4), num_unknowns // size)
        groups = [*groups, rows(20 * size, 0, num_unknowns // size), new] if step < 11 else [new]
        added = rng.uniform(0.0, 1e-2, num_unknowns) * (step % 3)
        if step == 11:
            factorization.keep(np.arange(num_unknowns // size))
        named = {number: group for number, group in enumerate(groups)}
        factorization.linearize(named, num_unknowns)
        assert factorization.is_exact
        factorization.factorize(added)
        dense = _dense(groups, num_unknowns)
        normal = dense.T @ dense
        diagonal = normal.diagonal().copy()
        squares = np.zeros(num_unknowns)
        for group in groups:
            np.add.at(squares, group.columns, (group.entries**2).sum(axis=1))
        assert_allclose(factorization.squares, squares, atol=1e-12)
        residual = np.concatenate([group.residual.ravel() for group in groups])
        assert_allclose(factorization.gradient, dense.T @ residual, atol=1e-10)
        np.fill_diagonal(normal, np.where(diagonal > 0.0, diagonal + added, 1.0))
        rhs = rng.normal(size=num_unknowns)
        wanted = np.linalg.solve(normal, rhs)
        assert factorization.is_definite
        assert_allclose(factorization.solve(rhs), wanted, rtol=1e-8, atol=1e-10)
        # what the solve before has left is taken over
        for number, other in enumerate((rhs, 1e-9 * rhs, rhs + (np.arange(num_unknowns) == 5))):
            decrease = factorization.forward(other)
            expected = np.linalg.solve(normal, other)
            assert decrease == pytest.approx(other @ expected, rel=1e-8), number
            largest = np.abs(expected).max()
            assert_allclose(factorization.backward(), expected, rtol=1e-8, atol=1e-10 * largest)
        chosen = np.array([3, num_unknowns - 1])
        wanted = np.linalg.inv(normal)[chosen]
        assert_allclose(factorization.inverse_rows(chosen), wanted, rtol=1e-8, atol=1e-10)


def test_what_changes_little_is_not_factorised_again() -> None:
    """A chain of 30 blocks in which a few rows change, by more and by less than is allowed."""
    rng = np.random.default_rng(3)
    columns = 2 * np.arange(29)[:, None] + np.arange(4)
    rows = RowGroup(rng.normal(size=(29, 5)), columns, rng.normal(size=(29, 5, 4)))
    factorization = BlockFactorization(2)
    factorization.linearize({"chain": rows}, 60)
    factorization.factorize()
    moved = RowGroup(rng.normal(size=(29, 5)), columns, rows.entries.copy())
    moved.entries[4] *= 1.001
    moved.entries[11] *= 1.2
    factorization.linearize({"chain": moved}, 60, most_change=0.01)
    are_exact = [factorization.is_exact]
    assert_array_equal(np.flatnonzero(factorization.changed), [11, 12])
    dense = _dense([moved], 60)
    assert_allclose(factorization.gradient, dense.T @ moved.residual.ravel(), atol=1e-12)
    factorization.factorize()
    kept = RowGroup(moved.residual, columns, moved.entries.copy())
    kept.entries[4] = rows.entries[4]
    rhs = rng.normal(size=60)
    for now, most in ((kept, 0.01), (moved, 0.0)):
        factorization.linearize({"chain": moved}, 60, most_change=most)
        factorization.factorize()
        dense = _dense([now], 60)
        assert_allclose(factorization.solve(rhs), np.linalg.solve(dense.T @ dense, rhs), rtol=1e-9)
        are_exact.append(factorization.is_exact)
    assert are_exact == [False, False, True]
    # derivatives that are no numbers are a change, whatever is allowed
    moved.entries[7, 0, 0] = np.nan
    factorization.linearize({"chain": moved}, 60, most_change=0.01)
    factorization.factorize()
    assert not factorization.is_definite


def test_rows_that_changed_are_taken_alone() -> None:
    """Gradient and lengths are those of all rows; what little changed stays to be factorised."""
    rng = np.random.default_rng(8)
    columns = 2 * np.arange(29)[:, None] + np.arange(4)
    before = RowGroup(rng.normal(size=(29, 5)), columns, rng.normal(size=(29, 5, 4)))
    residual, entries = before.residual.copy(), before.entries.copy()
    places = np.array([3, 12, 20])
    residual[places] += 1.0
    entries[places[:2]] *= [[[1.001]], [[1.5]]]
    more = RowGroup(rng.normal(size=(1, 5)), columns[-1:] + 2, rng.normal(size=(1, 5, 4)))
    now = RowGroup(
        np.concatenate([residual, more.residual]),
        np.concatenate([columns, more.columns]),
        np.concatenate([entries, more.entries]),
    )
    factorization = BlockFactorization(2)
    factorization.linearize({"chain": before}, 60)
    factorization.factorize()
    changed = {"chain": (places, before.chosen(places))}
    factorization.linearize({"chain": now}, 62, most_change=0.01, changed=changed)
    assert_array_equal(np.flatnonzero(factorization.changed), [12, 13, 29, 30])
    assert not factorization.is_exact
    dense = _dense([now], 62)
    assert_allclose(factorization.gradient, dense.T @ now.residual.ravel(), atol=1e-12)
    assert_allclose(factorization.squares, (dense**2).sum(axis=0), atol=1e-12)
    again = {"chain": (places[:1], now.chosen(places[:1]))}
    factorization.linearize({"chain": now}, 62, changed=again)
    assert factorization.is_exact


def test_small_entries_of_a_step_are_left_out() -> None:
    """Those that are left out gain at most k n least^2 / 2, with k unknowns of a row."""
    rng = np.random.default_rng(9)
    columns = 2 * np.arange(99)[:, None] + np.arange(4)
    residual = np.zeros((99, 5))
    residual[:4] = rng.normal(size=(4, 5))
    rows = RowGroup(residual, columns, rng.normal(size=(99, 5, 4)))
    factorization = BlockFactorization(2)
    factorization.linearize({"chain": rows}, 200)
    factorization.factorize()
    dense = _dense([rows], 200)
    promised = 0.5 * factorization.forward(-factorization.gradient)
    whole = factorization.backward()
    assert_allclose(whole, np.linalg.lstsq(dense, -residual.ravel())[0], atol=1e-9)
    assert promised == pytest.approx(-0.5 * factorization.gradient @ whole, rel=1e-12)
    least = np.sqrt(0.01 * promised / 400)
    factorization.forward(-factorization.gradient)
    step = factorization.backward(least)
    is_zero = (step.reshape(-1, 2) == 0.0).all(axis=1)
    assert 10 < is_zero.sum() < 100
    decrease = 0.5 * (residual**2).sum() - 0.5 * ((residual.ravel() + dense @ step) ** 2).sum()
    assert decrease >= 0.98 * promised


def test_a_singular_matrix_is_seen() -> None:
    rng = np.random.default_rng(0)
    group = _groups(rng, 40, 0, 20)
    entries = group.entries - group.entries.mean(axis=2, keepdims=True)
    factorization = BlockFactorization(1)
    rows = RowGroup(group.residual, group.columns, entries)
    factorization.linearize({"rows": rows}, 20)
    factorization.factorize()
    assert not factorization.is_definite
    factorization.factorize(1e-6)
    assert factorization.is_definite


def _check_elimination(groups: list[RowGroup], taken: list[Integers], kept: Integers) -> None:
    """Minimum and curvature are those of the dense rows."""
    rows, residual, constant = eliminated(groups, taken, kept)
    gone = np.concatenate(taken)
    dense = _dense(groups, len(gone) + len(kept))
    given = np.concatenate([group.residual.ravel() for group in groups])
    inverse = np.linalg.pinv(dense[:, gone], rcond=1e-10)
    projector = np.eye(len(dense)) - dense[:, gone] @ inverse
    assert len(rows) <= len(kept)
    assert_allclose(rows.T @ rows, dense[:, kept].T @ projector @ dense[:, kept], atol=1e-10)
    assert_allclose(rows.T @ residual, dense[:, kept].T @ projector @ given, atol=1e-10)
    whole = 0.5 * given @ projector @ given
    assert constant + 0.5 * residual @ residual == pytest.approx(whole, rel=1e-12)


def test_elimination_keeps_minimum_and_curvature() -> None:
    """Also where the unknowns that go are not determined."""
    rng = np.random.default_rng(5)
    groups = [_groups(rng, 6, 0, 10), _groups(rng, 5, 4, 16)]
    taken = [np.arange(0, 3), np.arange(3, 5), np.arange(5, 7)]
    # one unknown that no row depends on
    taken.append(np.array([16]))
    _check_elimination(groups, taken, np.arange(7, 16))


@pytest.mark.parametrize("num_poses", [1, 3])
def test_landmarks_go_before_poses(num_poses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, into room that has to grow; a landmark with one sight has a free direction."""
    monkeypatch.setattr(gaussian, "ROOM", 1)
    rng = np.random.default_rng(num_poses)
    marks, poses = np.split(np.arange(15 * 3 + 7 * 6), [15 * 3])
    marks, poses = marks.reshape(15, 3), poses.reshape(7, 6)
    sights = [(mark, pose) for mark in range(15) for pose in range(1 + mark % 7)]
    columns = np.array([[*marks[mark], *poses[pose]] for mark, pose in sights])
    shape = (len(sights), 2, 9)
    sight = RowGroup(rng.normal(size=shape[:2]), columns, rng.normal(size=shape))
    columns = np.concatenate([poses[:-1], poses[1:]], axis=1)
    moves = RowGroup(rng.normal(size=(6, 6)), columns, rng.normal(size=(6, 6, 12)))
    # another one with two parallel columns
    of_mark = sight.columns[:, 0] == marks[4, 0]
    sight.entries[of_mark, :, 1] = 0.7 * sight.entries[of_mark, :, 0]
    taken = [*marks, *poses[:num_poses]]
    _check_elimination([sight, moves], taken, poses[num_poses:].ravel())


def _grown(problem: caspar.Problem, num_poses: int, seed: int) -> list[float]:
    """A walk in squares that sees earlier places; the costs after each update."""
    rng = np.random.default_rng(seed)
    true = [np.array([0.0, 0.0, 0.0])]
    ids = [int(problem.add_nodes("Pose2", _pose2(0.0, 0.0, 0.0))[0])]
    problem.add_factors(
        "start", {"value": ids, "expected": _pose2(0.0, 0.0, 0.0), "sigma": [0.01] * 3}
    )
    costs = []
    for step in range(1, num_poses):
        x, y, angle = true[-1]
        turned = angle + (np.pi / 2 if step % 5 == 0 else 0.0)
        true.append(np.array([x + np.cos(turned), y + np.sin(turned), turned]))

        def relative(first: int, second: int) -> Rows:
            x, y, angle = true[first]
            dx, dy = true[second][:2] - (x, y)
            cosine, sine = np.cos(angle), np.sin(angle)
            noise = rng.normal(size=3) * (0.05, 0.05, 0.02)
            return _pose2(
                cosine * dx + sine * dy + noise[0],
                cosine * dy - sine * dx + noise[1],
                true[second][2] - angle + noise[2],
            )

        measured = relative(step - 1, step)
        c, s, x0, y0 = problem.values_of("Pose2", ids[-1:])[0]
        dc, ds, dx, dy = measured[0]
        value = [[c * dc - s * ds, s * dc + c * ds, x0 + c * dx - s * dy, y0 + s * dx + c * dy]]
        ids.append(int(problem.add_nodes("Pose2", value)[0]))
        pairs = [(step - 1, step)] + [(step - 20, step)] * (step >= 20 and step % 3 == 0)
        for first, second in pairs:
            between = measured if second - first == 1 else relative(first, second)
            given = {"a": [ids[first]], "b": [ids[second]], "a_from_b": between}
            problem.add_factors("odometry", {**given, "sigma": [[0.02, 0.05, 0.05]]})
        costs.append(problem.update(max_iterations=3, cost_tolerance=1e-5).cost)
    return costs


def test_a_graph_that_grows_stays_at_its_minimum() -> None:
    problem = caspar.Problem([odometry, start], backend="cpu", precision="float64")
    costs = _grown(problem, 90, 0)
    assert costs[-1] > 1.0
    result = problem.solve()
    assert costs[-1] <= (1.0 + 1e-4) * result.final_cost


def test_nodes_that_hardly_move_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only factors whose nodes move are evaluated then, and costs are as good."""
    written: list[int] = []
    write = incremental.Change.write

    def noted(change: Any, evaluated: Any) -> Any:
        written.append(sum(map(len, change.places.values())))
        return write(change, evaluated)

    monkeypatch.setattr(incremental.Change, "write", noted)
    monkeypatch.setattr(incremental, "MANY_BLOCKS", 30)
    problem = caspar.Problem([odometry, start], backend="cpu", precision="float64")
    costs = _grown(problem, 90, 0)
    assert len(written) > 0
    assert max(written) < len(problem.handles("odometry"))
    assert costs[-1] <= (1.0 + 1e-4) * problem.solve().final_cost
    # what is known of the factors is what they cost at the values
    again = caspar.Problem([odometry, start], backend="cpu", precision="float64")
    _grown(again, 90, 0)
    copied = copy.deepcopy(again)
    now, anew = (one.update(cost_tolerance=0.5) for one in (again, copied))
    assert (now.iterations, anew.iterations) == (0, 0)
    assert now.cost == pytest.approx(anew.cost, rel=1e-12)


def test_most_steps_of_a_graph_factorise_nothing() -> None:
    problem = caspar.Problem([odometry, start], backend="cpu", precision="float64")
    _grown(problem, 40, 1)
    last = problem.ids("Pose2")[-1:]
    c, s, x, y = problem.values_of("Pose2", last)[0]
    new = problem.add_nodes("Pose2", [[c, s, x + c, y + s]])
    given = {"a": last, "b": new, "a_from_b": _pose2(1.0, 0.0, 0.0), "sigma": [[0.1] * 3]}
    problem.add_factors("odometry", given)
    result = problem.update(cost_tolerance=1e-4)
    assert (result.iterations, result.relinearised) == (0, 0)
    assert result.status is caspar.SolveStatus.CONVERGED_COST


def _window(seed: int, length: int | None, num_frames: int = 14) -> tuple[Rows, Rows, int]:
    """A camera that passes marks, of which each is seen from six frames.

    Args:
        seed: Of the noise.
        length: Frames that stay; None: all.
        num_frames: Of the passage.

    Returns:
        The last pose, its covariance, and the nodes that are left.
    """
    rng = np.random.default_rng(seed)
    problem = caspar.Problem([motion, begin, sight], backend="cpu", precision="float64")
    frames: list[int] = []
    marks: dict[int, tuple[int, Rows]] = {}
    for frame in range(num_frames):
        place = np.array([0.4 * frame, 0.0, 0.0])
        pose = np.concatenate([[0.0, 0.0, 0.0, 1.0], place + 0.02 * rng.normal(size=3)])[None]
        frames.append(int(problem.add_nodes("Pose3", pose)[0]))
        if frame < 2:
            known = np.concatenate([[0.0, 0.0, 0.0, 1.0], place])[None]
            given = {"value": frames[-1:], "expected": known, "sigma": [0.01] * 6}
            problem.add_factors("begin", given)
        else:
            moved = np.array([[0.0, 0.0, 0.0, 1.0, 0.4, 0.0, 0.0]])
            moved[0, 4:] += 0.01 * rng.normal(size=3)
            given = {"a": frames[-2:-1], "b": frames[-1:], "a_from_b": moved}
            problem.add_factors("motion", {**given, "sigma": [0.02] * 3 + [0.05] * 3})
        for _ in range(4):
            mark = place + rng.uniform((-1.0, -1.0, 4.0), (1.0, 1.0, 6.0))
            number = int(problem.add_nodes("Mark", (mark + 0.05 * rng.normal(size=3))[None])[0])
            marks[number] = frame, mark
        seen = list(marks)
        beside = np.array([marks[one][1] for one in seen]) - place
        pixels = beside[:, :2] / beside[:, 2:] + 0.01 * rng.normal(size=(len(seen), 2))
        given = {"pose": frames[-1:] * len(seen), "mark": seen, "pixel": pixels}
        problem.add_factors("sight", given)
        problem.update(max_iterations=10, cost_tolerance=1e-12)
        old = [one for one, (first, _) in marks.items() if frame - first == 5]
        for one in old:
            del marks[one]
        if length is not None:
            gone = frames[:-length]
            del frames[:-length]
            problem.marginalize({"Pose3": gone, "Mark": old})
            assert len(problem.gaussians) <= 2
    result = problem.solve()
    assert result.status.is_success
    (covariance,) = problem.covariance({"Pose3": frames[-1:]})["Pose3"]
    num_nodes = len(problem.ids("Pose3")) + len(problem.ids("Mark"))
    return problem.values_of("Pose3", frames[-1:])[0], covariance, num_nodes


def test_a_window_knows_what_the_whole_knows() -> None:
    """Nearly: what is taken out keeps the linearisation of its moment."""
    whole, covariance, num_all = _window(0, None)
    windowed, of_window, num_left = _window(0, 7)
    assert num_left < num_all
    deviations = np.sqrt(covariance.diagonal())
    assert_allclose(windowed[4:], whole[4:], atol=0.2 * deviations[3:].max())
    assert_allclose(np.sqrt(of_window.diagonal()), deviations, rtol=0.02)


def test_gaussians_can_be_kept_and_removed() -> None:
    problem = caspar.Problem([odometry, start], backend="cpu", precision="float64")
    _grown(problem, 30, 2)
    problem.solve()
    ids = problem.ids("Pose2")
    before = problem.covariance({"Pose2": ids[-1:]})["Pose2"]
    handle = problem.marginalize("Pose2", ids[:10])
    assert handle is not None
    gaussian = problem.gaussians[handle]
    assert not gaussian.rows.flags.writeable
    assert (np.linalg.eigvalsh(gaussian.information) >= -1e-9).all()
    assert_allclose(problem.covariance({"Pose2": ids[-1:]})["Pose2"], before, rtol=1e-8)
    assert problem.update().iterations == 0
    problem.remove_gaussian(handle)
    with pytest.raises(caspar.errors.RankDeficiencyError):
        problem.covariance({"Pose2": ids[-1:]})
    again = problem.add_gaussian(gaussian)
    assert again != handle
    assert_allclose(problem.covariance({"Pose2": ids[-1:]})["Pose2"], before, rtol=1e-8)
    problem.remove_factors("odometry", problem.handles("odometry"))
    with pytest.raises(caspar.errors.InputError, match=r"Gaussian .* touches these nodes"):
        problem.remove_nodes("Pose2", gaussian.nodes["Pose2"][:1])
    with pytest.raises(caspar.errors.OptionError, match="max_time_s"):
        problem.solve(max_time_s=1.0)


def test_a_matrix_that_needs_damping_ends_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if rounding made all matrices of less damping singular."""
    problem = caspar.Problem([odometry, start], backend="cpu", precision="float64")
    _grown(problem, 12, 4)
    problem.remove_factors("start", problem.handles("start"))
    first = problem.ids("Pose2")[:1]
    problem.set_values("Pose2", first, _pose2(0.3, 0.2, 0.1))
    monkeypatch.setattr(block_factorization, "NO_PIVOT", 1e-9)
    result = problem.update(max_iterations=50, cost_tolerance=1e-10)
    assert result.status is caspar.SolveStatus.CONVERGED_COST
    # also if there is nothing to gain from the start
    problem.set_values("Pose2", first, problem.values_of("Pose2", first))
    again = problem.update(max_iterations=50, cost_tolerance=1e-10)
    assert (again.status, again.iterations) == (caspar.SolveStatus.CONVERGED_COST, 0)
    monkeypatch.undo()
    assert result.cost == pytest.approx(problem.solve().final_cost, rel=1e-6, abs=1e-12)


def test_an_update_that_finds_no_step_leaves_the_next_one_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = caspar.Problem([odometry, start], backend="cpu", precision="float64")
    _grown(problem, 12, 5)
    first = problem.ids("Pose2")[:1]
    problem.set_values("Pose2", first, _pose2(0.3, 0.2, 0.1))
    before = problem.values["Pose2"]
    monkeypatch.setattr(block_factorization, "NO_PIVOT", 1e99)
    assert problem.update().status is caspar.SolveStatus.DAMPING_LIMIT
    assert_allclose(problem.values["Pose2"], before, rtol=0.0)
    monkeypatch.undo()
    assert problem.update(max_iterations=20).status is caspar.SolveStatus.CONVERGED_COST


def test_nodes_without_neighbours_leave_nothing() -> None:
    problem = caspar.Problem([odometry, start], backend="cpu")
    ids = problem.add_nodes("Pose2", np.concatenate([_pose2(0.0, 0.0, 0.0)] * 2))
    given = {"value": ids[:1], "expected": _pose2(0.0, 0.0, 0.0), "sigma": [1.0] * 3}
    problem.add_factors("start", given)
    assert problem.marginalize("Pose2", ids) is None
    assert len(problem.ids("Pose2")) == len(problem.handles("start")) == 0
    assert problem.update().cost == 0.0


def test_a_point_with_one_sight_moves_across_its_ray() -> None:
    """Not along it, which costs nothing, even if the ray is nearly along an axis."""
    problem = caspar.Problem([sight, begin], backend="cpu", precision="float64")
    pose = np.array([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    ids = problem.add_nodes("Pose3", pose)
    problem.add_factors("begin", {"value": ids, "expected": pose, "sigma": [1e-3] * 6})
    start = np.array([[0.05, 0.01, 8.0]])
    mark = problem.add_nodes("Mark", start)
    problem.add_factors("sight", {"pose": ids, "mark": mark, "pixel": [[0.01, -0.002]]})
    result = problem.update(max_iterations=20, cost_tolerance=1e-12)
    assert result.cost < 1e-12
    assert_allclose(problem.values["Mark"][0, 2], 8.0, atol=1e-2)


@pytest.mark.parametrize("is_determined", [True, False])
def test_a_singular_matrix_has_no_old_derivatives(
    is_determined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient may point along what old ones do not see, and nothing bounds a step there."""
    allowed: list[float] = []
    linearize = BlockFactorization.linearize

    def noted(self: Any, groups: Any, num_unknowns: int, **options: Any) -> None:
        allowed.append(options["most_change"])
        linearize(self, groups, num_unknowns, **options)

    problem = caspar.Problem([sight, begin], backend="cpu", precision="float64")
    poses = np.array([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]])
    ids = problem.add_nodes("Pose3", poses)
    problem.add_factors("begin", {"value": ids, "expected": poses, "sigma": [1e-3] * 6})
    (mark,) = problem.add_nodes("Mark", [[0.3, 0.1, 8.0]])
    seen = ids if is_determined else ids[:1]
    pixels = [[0.03, 0.01], [-0.1, 0.012]][: len(seen)]
    problem.add_factors("sight", {"pose": seen, "mark": [mark] * len(seen), "pixel": pixels})
    problem.update(max_iterations=2, cost_tolerance=1e-4)
    monkeypatch.setattr(BlockFactorization, "linearize", noted)
    (other,) = problem.add_nodes("Mark", [[0.1, 0.2, 7.0]])
    twice = {"pose": ids, "mark": [other] * 2, "pixel": [[0.02, 0.03], [-0.12, 0.03]]}
    problem.add_factors("sight", twice)
    problem.update(max_iterations=2, cost_tolerance=1e-4)
    assert len(allowed) > 0
    assert set(allowed) == ({1e-2} if is_determined else {0.0})
