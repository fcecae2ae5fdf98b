"""A symbolic epsilon while tracing, whatever SymForce was set to, and for nobody else.

SymForce's formulas take `epsilon=sf.epsilon()`, which is 0 unless a program sets it before its
first import of SymForce: Lie group logarithms then divide 0 by 0 at the identity. While a function
is traced, `sf.epsilon()` and the defaults that were bound to 0 stand for a symbol instead; each
kernel replaces it by `value(dtype)`.

`sf.epsilon` and every function of SymForce with such a default get new code, once, when the first
function is traced. The new code calls the old code. It passes the symbol only if
`with_symbolic_epsilon` is among the callers, which it sees on its own thread's stack: there is no
state that an interrupt, another thread or a fork could leave wrong. Everybody else gets the value
that they got before. Name, signature, source and identity of the functions stay as they were.

Cost tier: preparing takes some milliseconds once; a call of a prepared function 0.2 us more.
"""

import inspect
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, TypeVar

import symforce.symbolic as sf

from caspar.ir.dtype import DType

SYMBOL = sf.Symbol("epsilon")
"""Stands for epsilon in traced expressions; also SymForce's own name for it."""

_ZERO = float("0.0")
"""The object that the defaults of 0 become: a caller's own 0.0 is another object, and is kept."""

_IMPORTS = "<frozen importlib._bootstrap>"

_prepared: dict[str, ModuleType] = {}
"""Modules of SymForce whose functions have their new code."""

_Result = TypeVar("_Result")


class _Hint(threading.local):
    """A flag: if this thread cannot be tracing, it need not look at its stack.

    An interrupt may leave it true. The next look at the stack corrects it.
    """

    may_trace = False


_hint = _Hint()


class SymForceGrewError(Exception):
    """The function imported functions of SymForce that were not prepared: trace it again."""


def value(dtype: DType) -> float:
    """Ten machine epsilons, SymForce's own choice."""
    return 1.1920929e-6 if dtype is DType.FLOAT32 else 2.220446049250313e-15


def with_symbolic_epsilon(
    function: Callable[..., _Result], /, *args: Any, **kwargs: Any
) -> _Result:
    """Call a function; while it runs, SymForce's epsilon is `SYMBOL` on this thread.

    Modules that are imported meanwhile get the usual epsilon; a `SymForceGrewError` says that
    functions were bound to it: call again.
    """
    prepare_symforce()
    before = _hint.may_trace
    _hint.may_trace = True
    try:
        result = function(*args, **kwargs)
    finally:
        _hint.may_trace = before
    if prepare_symforce():
        raise SymForceGrewError
    return result


_CALLER = with_symbolic_epsilon.__code__


def _is_tracing() -> bool:
    """Return whether this thread is inside `with_symbolic_epsilon`, and not inside an import."""
    if not _hint.may_trace:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALLER:
            return True
        if frame.f_code.co_filename == _IMPORTS:
            return False
        frame = frame.f_back
    _hint.may_trace = False
    return False


def _chosen(epsilon: Any, default: Any) -> Any:
    return SYMBOL if epsilon is default and _is_tracing() else epsilon


# -- new code for SymForce's functions -------------------------------------------------------------


def prepare_symforce() -> bool:
    """Give all functions of SymForce that are loaded their new code; whether any had the old one.

    It may be interrupted anywhere, and called by several threads at a time.
    """
    found = False
    # `copy` cannot be interrupted. A list of the items can: it makes a tuple for each, a garbage
    # collection may start there, and another thread may import then.
    for name, module in sys.modules.copy().items():
        if not name.startswith("symforce") or _prepared.get(name) is module:
            continue
        is_partial = getattr(module.__spec__, "_initializing", False)
        for function in _functions(module):
            found = _prepare(function) or found
        if not is_partial:
            _prepared[name] = module
    return found


def _functions(module: ModuleType) -> list[FunctionType]:
    members: list[Any] = []
    for thing in list(vars(module).values()):
        members += list(vars(thing).values()) if inspect.isclass(thing) else (thing,)
    functions = [getattr(member, "__func__", member) for member in members]
    return [
        function
        for function in functions
        if inspect.isfunction(function) and function.__module__.partition(".")[0] == "symforce"
    ]


def _prepare(function: FunctionType) -> bool:
    """Give a function its new code if its epsilon is SymForce's; whether it did not have it."""
    code = function.__code__
    if any(constant is _chosen for constant in code.co_consts):
        return False
    if function.__module__ == "symforce.internal.symbolic" and function.__name__ == "epsilon":
        function.__code__ = _new_code(function, "_chosen(_default := _call(), _default)")
        return True
    names = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    if "epsilon" not in names[len(names) - len(defaults) :]:
        return False
    number = names.index("epsilon") - len(names)
    default = defaults[number]
    if not (default is None or isinstance(default, sf.Symbol) or default == 0):
        return False  # a number that the program has chosen
    if type(default) is float:
        default = _ZERO
        kept = list(defaults)
        kept[number] = default
        function.__defaults__ = tuple(kept)
    passed = ("_chosen(epsilon, _default)" if name == "epsilon" else name for name in names)
    function.__code__ = _new_code(function, f"_call({', '.join(passed)})", default)
    return True


def _new_code(function: FunctionType, result: str, default: Any = None) -> CodeType:
    """Code that looks from outside like a function's, and calls the function as it is now.

    `result` is what it returns, as text: `_call` is the old function, `_chosen` the choice,
    `_default` is `default`.
    """
    code = function.__code__
    old = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    constants = {"<caspar: call>": old, "<caspar: chosen>": _chosen, "<caspar: default>": default}
    names = ", ".join(code.co_varnames[: code.co_argcount])
    bound = "; ".join(
        f"{name} = {text!r}"
        for name, text in zip(("_call", "_chosen", "_default"), constants, strict=True)
    )
    text = f"def {function.__name__}({names}): {bound}; return {result}"
    module = compile(text, code.co_filename, "exec", dont_inherit=True)
    made = next(one for one in module.co_consts if isinstance(one, CodeType))
    changed: dict[str, Any] = {"co_firstlineno": code.co_firstlineno}
    if hasattr(code, "co_qualname"):  # Python 3.11 and later
        changed["co_qualname"] = code.co_qualname
    return made.replace(
        co_consts=tuple(
            constants.get(one, one) if isinstance(one, str) else one for one in made.co_consts
        ),
        **changed,
    )
