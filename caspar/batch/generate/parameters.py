"""The parameters of the kernel of a batch: their names, in order.

Input: the shape of a batch. Output: what `Binding`s must be given for.
"""

from caspar.batch.generate import programs
from caspar.batch.generate.programs import WIDE
from caspar.batch.generate.shape import BatchShape, Instances
from caspar.codegen.source import COUNT, DATA, Param
from caspar.frontend.factors.trace import Argument, ArgumentKind
from caspar.ir.dtype import DType

STRIDE = "stride"
"""Rows of an argument between one problem and the next; 0: all have the same ones."""

INSTANCES = "instances"
"""Instances of a factor in each problem, where they are as many in all."""


def values_name(number: int) -> str:
    """Argument that holds the start values of a node type."""
    return f"start{number}"


def result_name(number: int) -> str:
    """Argument that the values of a node type are written to."""
    return f"values{number}"


def free_name(number: int) -> str:
    """Argument that says which components of a node type move."""
    return f"free{number}"


def bounds_names(number: int) -> tuple[str, str]:
    """Arguments that hold the lower and upper bounds of a node type."""
    return f"lower{number}", f"upper{number}"


def factor_name(number: int) -> str:
    """Argument that says which instances of a factor belong to a problem."""
    return f"f{number}"


INITIAL_COST, FINAL_COST, ITERATIONS, STATUS = "initial", "final", "iterations", "status"
OPTIONS = "options"
HANDED = "handed"
"""Argument that is not 0 after a kernel of float64 if it leaves problems to another one."""

COVARIANCE = "covariance"


def batch_params(shape: BatchShape) -> tuple[Param, ...]:
    """The parameters of the kernel that solves problems."""
    params = [*_input_params(shape), Param(DATA, OPTIONS, WIDE)]
    for number in range(len(shape.nodes)):
        params.append(Param(DATA, result_name(number), shape.storage, written=True))
    written = ((INITIAL_COST, WIDE), (FINAL_COST, WIDE), (ITERATIONS, DType.INT32))
    handed = ((HANDED, DType.INT32),) if shape.storage is DType.FLOAT64 else ()
    for name, dtype in (*written, (STATUS, DType.INT32), *handed):
        params.append(Param(DATA, name, dtype, written=True))
    return tuple(params)


def covariance_params(shape: BatchShape) -> tuple[Param, ...]:
    """The parameters of the kernel that finds covariances."""
    outputs = ((COVARIANCE, WIDE), (FINAL_COST, WIDE), (HANDED, DType.INT32))
    return (*_input_params(shape), *(Param(DATA, *one, written=True) for one in outputs))


def _input_params(shape: BatchShape) -> list[Param]:
    """Return the parameters that problems are read from."""
    storage = shape.storage
    params = [Param(COUNT)]
    for number, nodes in enumerate(shape.nodes):
        params.append(Param(DATA, values_name(number), storage))
        params += [Param(DATA, free_name(number), storage)] if nodes.is_masked else []
        limits = bounds_names(number) if nodes.is_bounded else ()
        params += [Param(DATA, name, storage) for name in limits]
    for number, one in enumerate(shape.factors):
        if one.instances is Instances.RAGGED:
            params.append(Param(DATA, factor_name(number), DType.INT32))
        elif one.instances is Instances.EQUAL:
            params.append(Param(INSTANCES, factor_name(number)))
        for argument in one.factor.inputs:
            has_rows = argument.node is None or has_index(shape, argument)
            if not has_rows:
                continue
            name = programs.constant_name(number, argument)
            values = DType.FLOAT16.in_arrays if argument.is_half else storage
            dtype = values if argument.node is None else DType.INT32
            params += [Param(DATA, name, dtype), Param(STRIDE, name)]
            if argument.kind is ArgumentKind.CONST_INDEXED:
                index = index_name(name)
                params += [Param(DATA, index, DType.INT32), Param(STRIDE, index)]
    return params


def index_name(constant: str) -> str:
    """Argument that says which row of a constant each instance reads."""
    return f"{constant}_index"


def has_index(shape: BatchShape, argument: Argument) -> bool:
    """Return whether an index says which node of a problem an instance touches."""
    return argument.kind is ArgumentKind.NODE_SHARED and shape.nodes_of(argument).count > 1
