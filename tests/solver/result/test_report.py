import dataclasses
import io
import math
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from rich.console import Console

from caspar.options import Precision
from caspar.solver.result.report import (
    COST_DIGITS,
    SHOWN_AT_ENDS,
    html_report,
    iteration_rows,
    report_facts,
    terminal_report,
    text_report,
)
from caspar.solver.result.result import SolveStatus
from tests.examples import failed_result, make_record, make_result

VOID_TAGS = {"img"}


class Page(HTMLParser):
    """Checks that tags are closed in order, and keeps the text of the cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.num_images = 0
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.num_images += tag == "img"
        if tag == "td":
            self.cells.append("")
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID_TAGS:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.cells[-1] += data


@pytest.mark.parametrize("status", list(SolveStatus))
def test_status_and_advice(status: SolveStatus) -> None:
    name, text = report_facts(make_result(status=status))[0]
    assert name == "status"
    assert text == f"{status.name}: {status.value}"


def test_facts() -> None:
    facts = dict(report_facts(make_result(8)))
    assert facts["cost"] == "1,000.00 -> 107.031 (9.34 times lower)"
    assert facts["RMS residual"] == "4.082 -> 1.336"
    assert facts["unknowns"] == "87: 3 Cam, 20 Point"
    assert facts["residuals"] == "120: 60 snavely"
    assert facts["iterations"] == "8 (1 rejected), 116 pcg iterations"
    assert facts["time"] == "compile 1.25 s, set up 12.5 ms, solve 32.0 ms"
    assert facts["memory"] == "3.00 MiB at most"
    assert facts["ran on"] == "cpu: test CPU, 2 threads; mixed precision; linear solver pcg"


@pytest.mark.parametrize("precision", list(Precision))
def test_digits_suit_the_precision(precision: Precision) -> None:
    result = make_result(precision=precision.value, initial_cost=4413239.314159)
    shown = dict(report_facts(result))["cost"].split(" -> ")[0].replace(",", "")
    significant = len(shown.replace(".", "").rstrip("0"))
    assert significant <= COST_DIGITS[precision.value]
    assert float(shown) == pytest.approx(4413239.314159, rel=10.0 ** -COST_DIGITS[precision.value])


def test_printed_result_is_plain_ascii_of_limited_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = str(make_result(8))
    assert text.isascii()
    assert all(line.isprintable() for line in text.splitlines())
    assert all(line == line.rstrip() and len(line) <= 100 for line in text.splitlines())
    assert text == text_report(make_result(8), width=100)


def test_text(golden: Callable[[str, str], None]) -> None:
    golden(f"{text_report(make_result(8), width=100)}\n", "txt")


def test_narrow_text_keeps_every_number() -> None:
    text = text_report(make_result(8), width=80)
    assert all(len(line) <= 80 for line in text.splitlines())
    for row in iteration_rows(make_result(8)):
        assert row[1] in text


def test_terminal_has_colours() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="standard", width=100)
    console.print(terminal_report(make_result()))
    assert "\x1b[32mCONVERGED_COST" in stream.getvalue()


def test_long_tables_are_shortened_in_the_middle() -> None:
    num_iterations = 5 * SHOWN_AT_ENDS
    lines = text_report(make_result(num_iterations), width=100).splitlines()
    table = lines[next(n for n, line in enumerate(lines) if line.startswith("---")) + 1 :]
    numbers = [line.split()[0] for line in table if line.split()[0].isdigit()]
    first = [str(number) for number in range(SHOWN_AT_ENDS)]
    last = [str(number) for number in range(num_iterations - SHOWN_AT_ENDS + 1, num_iterations + 1)]
    assert numbers == first + last
    assert f"({num_iterations + 1 - 2 * SHOWN_AT_ENDS} not shown)" in "\n".join(table)


def test_tables_are_not_shortened_for_one_row() -> None:
    assert "not shown" not in text_report(make_result(2 * SHOWN_AT_ENDS), width=100)
    assert "not shown" in text_report(make_result(2 * SHOWN_AT_ENDS + 1), width=100)


def test_rows() -> None:
    start, first, rejected, *_ = iteration_rows(make_result())
    assert start == ("0", "1.00000e+03", "", "", "", "", "", "start")
    assert first[:3] == ("1", "5.50000e+02", "4.5e-01")
    assert rejected[1:3] == ("5.50000e+02", "")
    assert rejected[4] == "-2.00"
    assert rejected[-1] == "rejected: the cost did not decrease as predicted"


@pytest.mark.parametrize(
    ("gain_ratio", "text"), [(math.nan, ""), (-1e30, "< -100"), (1e9, "> 100"), (0.98765, "0.99")]
)
def test_gain_ratio(gain_ratio: float, text: str) -> None:
    result = make_result(iterations=(make_record(1, 5.0, gain_ratio=gain_ratio),))
    assert iteration_rows(result)[1][4] == text


def test_failure_without_iterations() -> None:
    result = failed_result()
    text = str(result)
    assert "INITIAL_COST_NOT_FINITE" in text
    assert "nan -> nan" in text
    assert "not known" in text
    assert "iteration " not in text.splitlines()[-1]
    assert Page(html_report(result)).num_images == 0


def test_nothing_to_solve() -> None:
    result = make_result(1, initial_cost=0.0, final_cost=0.0)
    no_residuals = dataclasses.replace(result.problem, num_residuals=0)
    facts = dict(report_facts(dataclasses.replace(result, problem=no_residuals)))
    assert facts["RMS residual"] == "none: there are no residuals"
    assert facts["cost"] == "0 -> 0"
    assert iteration_rows(result)[1][2] == ""


def test_html() -> None:
    result = make_result(30, device="<b>GPU & more</b>")
    page = Page(result._repr_html_())
    assert page.num_images == 1
    for name, text in report_facts(result):
        assert page.cells[page.cells.index(name) + 1] == text
    for row in iteration_rows(result):  # all of them: they are folded away
        assert row[1] in page.cells


def test_html_escapes_what_a_cell_holds() -> None:
    result = make_result(iterations=(make_record(1, 5.0, gain_ratio=-1e9),))
    assert "< -100" in Page(html_report(result)).cells


def test_repr_is_one_line() -> None:
    assert len(repr(make_result(100))) < 1000
