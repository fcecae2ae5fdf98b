"""A solve in words and numbers: as text, for a terminal, as HTML for a notebook.

Input: a `SolveResult`. Output: text or renderables; nothing is written anywhere. Public as
`caspar.report`, loaded when a result is first shown. Costs have as many digits as the precision
of the solve gives them, RMS residuals and times fewer.
"""

import base64
import io
import math
import shutil
from collections.abc import Mapping
from html import escape

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import caspar
from caspar.errors import MissingPackageError
from caspar.options import Precision
from caspar.solver.result.quantities import (
    MOST_FITTED,
    bytes_text,
    change_text,
    cost_text,
    count_text,
    fields_text,
    time_text,
)
from caspar.solver.result.result import (
    IterationRecord,
    ProblemSize,
    SolveResult,
    SolveStatus,
    num_numbers,
    on_host,
)
from caspar.tables import LINE_UNDER_HEAD, WIDTH, plain_text

MOST_AT_BOUNDS = 6
"""Numbers at bounds up to which a report names each."""

SHOWN_AT_ENDS = 10
"""Iterations shown at both ends of a table that is shortened in the middle."""

COST_DIGITS = {Precision.MIXED.value: 6, Precision.FLOAT64.value: 8, Precision.FLOAT32.value: 6}
"""Digits of a cost that mean something: values rounded to float32 change that of Trafalgar-21 by
7e-7 relative."""

_COLUMNS = ("iteration", "cost", "decrease", "damping", "gain", "linear", "time", "step")
_STEP = len(_COLUMNS) - 1


def text_report(result: SolveResult, width: int | None = None) -> str:
    """The report as plain text, in ASCII, without colour codes."""
    columns = min(shutil.get_terminal_size((WIDTH, 0)).columns, WIDTH) if width is None else width
    return plain_text(terminal_report(result), columns).strip("\n")


def terminal_report(result: SolveResult) -> RenderableType:
    """The report for a rich console, which knows whether it may use colours."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    status, *others = report_facts(result)
    facts.add_row(status[0], Text(status[1], style=_style(result.status)))
    for name, text in others:
        facts.add_row(name, Text(text))
    if not result.iterations:
        return facts
    return Group(facts, Text(), _iteration_table(result))


def report_facts(result: SolveResult) -> list[tuple[str, str]]:
    """Name and text of each fact; the first is the status."""
    digits = _cost_digits(result)
    initial, final = cost_text(result.initial_cost, digits), cost_text(result.final_cost, digits)
    change = change_text(result.initial_cost, result.final_cost)
    problem, known = result.problem, result.standard_errors
    return [
        ("status", f"{result.status.name}: {result.status.value}"),
        ("cost", f"{initial} -> {final}" + (f" ({change})" if change else "")),
        *_loss_facts(result),
        *_remaining_facts(result),
        ("unknowns", f"{problem.num_unknowns:,}: {_instances(problem.nodes)}{_held_text(problem)}"),
        *_bounds_facts(result),
        *_constraint_facts(result),
        ("residuals", f"{problem.num_residuals:,}: {_residuals_text(problem)}"),
        *(("fitted", text) for text in fitted_texts(result)),
        *([] if known is None else [("uncertainty", known.meaning)]),
        ("iterations", _iterations_text(result)),
        *(("remark", remark) for remark in result.remarks),
        (
            "time",
            f"compile {time_text(result.compile_time_s)}, set up "
            f"{time_text(result.setup_time_s)}, solve {time_text(result.solve_time_s)}",
        ),
        (
            "memory",
            f"{bytes_text(result.peak_memory_bytes)} at most"
            if result.peak_memory_bytes > 0
            else "not known",
        ),
        (
            "ran on",
            f"{result.backend}: {result.device}; {result.precision} precision; "
            f"linear solver {result.linear_solver}",
        ),
    ]


def _remaining_facts(result: SolveResult) -> list[tuple[str, str]]:
    """Return the decrease that a step without damping promises; nothing if it is not known."""
    if not math.isfinite(result.remaining_decrease):
        return []
    share = result.remaining_decrease
    promised = f"{share:.1e} of the cost" if share > 0.0 else "nothing"
    return [("promised", f"{promised}, by a further step without damping")]


def _held_text(problem: ProblemSize) -> str:
    held = {name: count for name, count in problem.held.items() if count > 0}
    if len(held) == 0:
        return ""
    counts = ", ".join(f"{count:,} of {name}" for name, count in held.items())
    return f"; held: {counts}"


def _bounds_facts(result: SolveResult) -> list[tuple[str, str]]:
    """Return how many of the numbers with bounds are at one, and which if they are few."""
    bounded = {name: count for name, count in result.problem.bounded.items() if count > 0}
    if len(bounded) == 0:
        return []
    active = {name: np.argwhere(result.active_bounds[name]) for name in bounded}
    counts = ", ".join(
        f"{len(active[name]):,} of {count:,} of {name}" for name, count in bounded.items()
    )
    text = f"{counts} at a bound"
    if 0 < sum(map(len, active.values())) <= MOST_AT_BOUNDS:
        names = [
            _bound_text(result, name, int(row), int(column))
            for name, places in active.items()
            for row, column in places
        ]
        text += f": {', '.join(names)}"
    return [("bounds", text)]


def _constraint_facts(result: SolveResult) -> list[tuple[str, str]]:
    """Return how well constraints hold, and how many of their entries hold the cost back."""
    violation = result.violation
    if len(violation.constraint) == 0:
        return []
    binding = ", ".join(
        f"{np.count_nonzero(rows):,} of {rows.size:,} entries of {name}"
        for name, rows in result.multipliers.items()
    )
    worst = f" at {violation.constraint}[{violation.instance}]" if violation.scaled > 0.0 else ""
    return [
        (
            "constraints",
            f"hold to {violation.unscaled:.1e}, relative to their terms {violation.scaled:.1e}"
            f"{worst}; with a multiplier: {binding}",
        )
    ]


def _bound_text(result: SolveResult, name: str, row: int, column: int) -> str:
    """A number that is at a bound, such as `Lens[3] focal at its upper`."""
    marks = result.active_bounds[name]
    side = "upper" if marks[row, column] > 0 else "lower"
    owner, place = (name if len(marks) == 1 else f"{name}[{row}]"), f"[{column}]"
    for field, columns in result.fields.get(name, {}).items():
        if column in columns:
            number = "" if len(columns) == 1 else f"[{column - columns.start}]"
            place = f" {field}{number}"
    return f"{owner}{place} at its {side}"


def fitted_texts(result: SolveResult) -> list[str]:
    """Values of a problem of at most `MOST_FITTED` numbers by fields, with known errors."""
    if sum(map(num_numbers, result.values.values())) > MOST_FITTED:
        return []
    texts, known = [], result.standard_errors
    for name, array in result.values.items():
        rows = on_host(array)
        storage = result.fields.get(name, {})
        errors = None if known is None else known.by_type.get(name)
        tangent = {} if known is None else known.tangent.get(name, {})
        for number, row in enumerate(rows):
            owner = name if len(rows) == 1 else f"{name}[{number}]"
            own = None if errors is None else errors[number].tolist()
            texts.append(f"{owner}: {fields_text(row.tolist(), own, storage, tangent)}")
    return texts


def iteration_rows(result: SolveResult) -> list[tuple[str, ...]]:
    """The iterations as text, in the columns of the table; row 0 is the start."""
    digits = _cost_digits(result)
    start = ("0", _column_cost(result.initial_cost, digits), *[""] * 5, "start")
    rows: list[tuple[str, ...]] = [start]
    previous = result.initial_cost
    for record in result.iterations:
        rows.append(_iteration_row(record, previous, digits))
        previous = record.cost
    return rows


def html_report(result: SolveResult) -> str:
    """The report for a notebook: facts, the convergence plot, the iterations folded away."""
    color = _HTML_COLORS[_style(result.status)]
    (_, status), *others = report_facts(result)
    cells = [
        ("status", f'<b style="color:{color}">{escape(status)}</b>'),
        *((name, escape(text)) for name, text in others),
    ]
    rows = "".join(
        f"<tr><td {_LEFT}>{name}</td><td {_LEFT}>{text}</td></tr>" for name, text in cells
    )
    facts = f"<table>{rows}</table>"
    if not result.iterations:
        return f"<div>{facts}</div>"
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    body = "".join(f"<tr>{_html_cells(row)}</tr>" for row in iteration_rows(result))
    return (
        f"<div>{facts}{_plot_html(result)}"
        f"<details><summary>{count_text(len(result.iterations), 'iteration')}</summary>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></details></div>"
    )


def _html_cells(row: tuple[str, ...]) -> str:
    *numbers, step = row
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in numbers)
    return f"{cells}<td {_LEFT}>{escape(step)}</td>"


def _plot_html(result: SolveResult) -> str:
    """The plot as an image of twice the screen's resolution."""
    try:
        figure = caspar.plot.plot_convergence(result)
    except MissingPackageError as error:
        return f"<p>{escape(str(error))}.</p>"
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=2 * _SCREEN_DPI)
    data = base64.b64encode(png.getvalue()).decode("ascii")
    width = round(figure.get_figwidth() * _SCREEN_DPI)
    return (
        f'<img alt="cost over iterations and time" style="width:{width}px;max-width:100%" '
        f'src="data:image/png;base64,{data}"/>'
    )


def _iteration_table(result: SolveResult) -> Table:
    table = Table(box=LINE_UNDER_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for number, name in enumerate(_COLUMNS):
        is_step = number == _STEP
        table.add_column(name, justify="left" if is_step else "right", no_wrap=not is_step)
    rows = iteration_rows(result)
    num_hidden = len(rows) - 2 * SHOWN_AT_ENDS
    for number, row in enumerate(rows):
        if num_hidden > 1 and SHOWN_AT_ENDS <= number < len(rows) - SHOWN_AT_ENDS:
            if number == SHOWN_AT_ENDS:
                table.add_row("...", *[""] * (_STEP - 1), f"({num_hidden} not shown)")
            continue
        style = "yellow" if row[_STEP].startswith("rejected") else ""
        table.add_row(*(Text(cell, style=style) for cell in row))
    return table


def _iteration_row(record: IterationRecord, previous: float, digits: int) -> tuple[str, ...]:
    step = "accepted" if record.step_accepted else "rejected"
    is_lower = record.step_accepted and previous > 0.0
    return (
        str(record.iteration),
        _column_cost(record.cost, digits),
        f"{(previous - record.cost) / previous:.1e}" if is_lower else "",
        f"{record.damping:.1e}",
        _gain_text(record.gain_ratio),
        f"{record.linear_iterations:,}",
        time_text(record.time_s),
        f"{step}: {record.reason}" if record.reason else step,
    )


def _gain_text(gain_ratio: float) -> str:
    """Two decimals; how far below -100 a step was is of no use to anybody."""
    if not math.isfinite(gain_ratio):
        return ""
    return (
        f"{gain_ratio:.2f}"
        if abs(gain_ratio) < 100.0
        else "< -100"
        if gain_ratio < 0.0
        else "> 100"
    )


def _column_cost(cost: float, digits: int) -> str:
    """A cost in scientific notation, so that a column of them can be compared by eye."""
    return f"{cost:.{digits - 1}e}"


def _rms_text(result: SolveResult) -> str:
    """Root of the mean square over all residual rows, before and after."""
    rows = result.problem.num_residuals
    if rows == 0:
        return "none: there are no residuals"
    initial, final = (
        cost_text(math.sqrt(2.0 * cost / rows), 4) if cost >= 0.0 else f"{cost:g}"
        for cost in (result.initial_cost, result.final_cost)
    )
    return f"{initial} -> {final}"


def _loss_facts(result: SolveResult) -> list[tuple[str, str]]:
    """The root mean square of residuals, or what losses make of it; costs of several factors."""
    facts = []
    if len(result.losses) == 0:
        facts.append(("RMS residual", _rms_text(result)))
    for name, loss in result.losses.items():
        num_beyond, count = result.num_beyond_scale.get(name, 0), result.problem.factors[name]
        facts.append(("loss", f"{loss} of {name}: {num_beyond:,} of {count:,} beyond its scale"))
    if len(result.costs) > 1:
        digits = _cost_digits(result)
        costs = ", ".join(
            f"{name} {cost_text(cost, digits)}" for name, cost in result.costs.items()
        )
        facts.append(("cost by factor", costs))
    return facts


def _residuals_text(problem: ProblemSize) -> str:
    """Instances of factors, and how many weigh nothing."""
    left_out = _instances(problem.left_out)
    text = _instances(problem.factors)
    return text if left_out == "" else f"{text}; left out by weight 0: {left_out}"


def _iterations_text(result: SolveResult) -> str:
    num_rejected = sum(not record.step_accepted for record in result.iterations)
    num_linear = sum(record.linear_iterations for record in result.iterations)
    rejected = f" ({num_rejected} rejected)" if num_rejected else ""
    linear = count_text(num_linear, f"{result.linear_solver} iteration")
    return f"{len(result.iterations)}{rejected}, {linear}"


def _instances(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _cost_digits(result: SolveResult) -> int:
    return COST_DIGITS[result.precision]


def _style(status: SolveStatus) -> str:
    if status.is_success:
        return "green"
    failures = (
        SolveStatus.DAMPING_LIMIT,
        SolveStatus.INITIAL_COST_NOT_FINITE,
        SolveStatus.DERIVATIVES_NOT_FINITE,
        SolveStatus.OUT_OF_RANGE,
        SolveStatus.INFEASIBLE,
    )
    return "red" if status in failures else "yellow"


_HTML_COLORS = {"green": "#2da44e", "yellow": "#bf8700", "red": "#cf222e"}
_LEFT = 'style="text-align:left"'  # on each cell: notebooks align cells to the right
_SCREEN_DPI = 72
