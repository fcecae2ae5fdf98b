"""What a pass did is printed as the calls it took away and put in, whatever numbers values have."""

from itertools import pairwise

import pytest

from caspar.errors import OptionError
from caspar.inspect import inspect_factor
from caspar.inspect.changes import graph_changes
from caspar.ir.text import parse_graph
from caspar.passes.pipeline import GRAPH_STAGES
from tests.inspect.cases import distance
from tests.support_problems import sighting

BEFORE = """
graph float32
  v0, v1, v2 = read x[0]
  v3 = const 2.0
  v4 = pow v0, v3
  v5 = sum v1, v2
  v6 = sin v4
  v7 = sum v5, v6
  store y[0] v7
"""


def changes(after: str) -> list[str]:
    return graph_changes(parse_graph(BEFORE), parse_graph(after))


def test_numbers_and_the_order_of_operands_and_calls_are_no_change() -> None:
    after = """
    graph float32
      v0, v1, v2 = read x[0]
      v3 = sum v2, v1
      v4 = const 2.0
      v5 = pow v0, v4
      v6 = sin v5
      v7 = sum v6, v3
      store y[0] v7
    """
    assert changes(after) == []


def test_what_reads_a_value_that_is_made_in_another_way_has_not_changed() -> None:
    after = """
    graph float32
      v0, v1, v2 = read x[0]
      v3 = prod v0, v0
      v4 = sum v1, v2
      v5 = sin v3
      v6 = sum v4, v5
      store y[0] v6
    """
    assert changes(after) == ["- v4 = pow v0, 2.0", "+ v4 = prod v0, v0"]


def test_new_values_are_numbered_after_the_old_and_stand_before_their_reader() -> None:
    after = """
    graph float32
      v0, v1, v2 = read x[0]
      v3 = const 2.0
      v4 = pow v0, v3
      v5 = sin v4
      v6 = sum v1, v5
      v7 = sum v2, v6
      store y[0] v7
    """
    assert changes(after) == [
        "- v5 = sum v1, v2",
        "- v7 = sum v5, v6",
        "+ v8 = sum v1, v6",
        "+ v7 = sum v2, v8",
    ]


def test_a_store_of_another_value_is_a_change() -> None:
    assert changes(BEFORE.replace("store y[0] v7", "store y[0] v5")) == [
        "- store y[0] v7",
        "+ store y[0] v5",
    ]
    assert changes(BEFORE.replace("store y[0]", "store z[0]")) == [
        "- store y[0] v7",
        "+ store z[0] v7",
    ]


def test_conditions_that_agree_by_chance_are_not_the_same() -> None:
    text = """
    graph float32
      v0, v1 = read x[0]
      v2 = const {0}
      v3 = lt v0, v2
      v4 = select v3, v0, v1
      store y[0] v4
    """
    before, after = (parse_graph(text.format(limit)) for limit in (5.0, 6.0))
    assert [line[:8] for line in graph_changes(before, after)] == [
        "- v3 = l",
        "- v4 = s",
        "- store ",
        "+ v5 = l",
        "+ v6 = s",
        "+ store ",
    ]


def test_a_call_that_is_there_twice_is_a_change() -> None:
    graph = parse_graph(BEFORE)
    twice = parse_graph(BEFORE.replace("  store", "  v8 = sum v5, v6\n  store"))
    assert graph_changes(twice, graph) == ["- v8 = sum v5, v6"]
    assert graph_changes(graph, twice) == ["+ v7 = sum v5, v6"]


def test_every_pass_is_named_and_those_that_changed_nothing_say_so() -> None:
    kernel = inspect_factor(distance)["score"]
    text = str(kernel.changes())
    names = [name for name, _ in GRAPH_STAGES]
    assert [line.partition(":")[0] for line in text.splitlines() if line[0] != " "] == names
    assert text == "".join(str(kernel.changes(name)) for name in names)
    assert str(kernel.changes("sincos")) == "sincos: nothing changed\n"
    assert str(kernel.changes("powers")).startswith("powers\n  - v")


def test_an_origin_is_printed_where_it_changes() -> None:
    origins = [
        line.partition("  # ")[2]
        for line in str(inspect_factor(sighting)["linearize"].changes("flatten")).splitlines()
    ]
    shown = [origin for origin in origins if origin != ""]
    assert 0 < len(shown) < len(origins)
    assert all(before != after for before, after in pairwise(shown))


@pytest.mark.parametrize("name", ["graph", "schedule", "nothing"])
def test_only_passes_change_a_graph(name: str) -> None:
    message = f"stage='{name}': changes are those of a pass: powers, norms, "
    with pytest.raises(OptionError, match=message):
        inspect_factor(distance)["score"].changes(name)
