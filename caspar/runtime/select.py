"""Choosing a backend."""

import importlib
from collections.abc import Callable, Sequence

from caspar.errors import BackendError, OptionError
from caspar.options import BackendChoice, choice
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Group, Member
from caspar.runtime.group.ranks import Ranks
from caspar.runtime.group.sockets import ProcessGroup
from caspar.runtime.nvidia.probe import cuda_problem
from caspar.runtime.traits import BackendTraits

_CUDA_MEMBER = "caspar.runtime.cuda.member"
_CUDA_RANKS = "caspar.runtime.cuda.ranks"


def chosen_backend(given: str | BackendChoice | Backend) -> Backend:
    """The backend that a user means.

    Args:
        given: `auto`, `cuda`, `cpu`, a member of `BackendChoice`, or a backend, which is taken as
            it is.

    Raises:
        OptionError: Something else.
        BackendError: CUDA was asked for and is not usable.
    """
    if isinstance(given, str | BackendChoice):
        return select_backend(choice(BackendChoice, "backend", given))
    if isinstance(given, type) or not isinstance(getattr(given, "traits", None), BackendTraits):
        allowed = ", ".join(repr(one.value) for one in BackendChoice)
        raise OptionError(f"backend={given!r}: must be one of {allowed}, or a backend object")
    return given


def select_backend(chosen: BackendChoice) -> Backend:
    """The backend of a choice; its library is imported only now.

    Raises:
        BackendError: CUDA was asked for and is not usable; says why and what to install.
    """
    target = chosen_target(chosen)
    return _load("cuda", "CudaBackend") if target == "cuda" else _load("cpu", "CpuBackend")


def chosen_target(chosen: BackendChoice) -> str:
    """`cuda` or `cpu`, without a context on any device.

    Raises:
        BackendError: CUDA was asked for and is not usable; says why and what to install.
    """
    if chosen is BackendChoice.CPU:
        return "cpu"
    problem = cuda_problem()
    if problem is None:
        return "cuda"
    if chosen is BackendChoice.CUDA:
        raise BackendError(
            f"backend='cuda': {problem}. `caspar doctor` tells what is missing; "
            "backend='cpu' needs no GPU"
        )
    return "cpu"


def _load(module: str, name: str) -> Backend:
    backend: Backend = getattr(importlib.import_module(f"caspar.runtime.{module}.backend"), name)()
    return backend


def members_on_processor(size: int) -> list[Member]:
    """Parts of the host, which share its cores."""
    made: Callable[[], Member] = importlib.import_module("caspar.runtime.cpu.member").CpuMember
    return [made() for _ in range(size)]


def num_cuda_devices() -> int:
    """CUDA devices that this process sees."""
    return int(importlib.import_module(_CUDA_MEMBER).num_devices())


def members_on_cuda(numbers: Sequence[int]) -> list[Member]:
    """CUDA devices by their numbers."""
    made: Callable[[int], Member] = importlib.import_module(_CUDA_MEMBER).CudaMember
    return [made(number) for number in numbers]


def nccl_group(numbers: Sequence[int]) -> Group:
    """A group of these devices.

    Raises:
        BackendError: CuPy has no NCCL, or NCCL refuses.
    """
    group: Group = importlib.import_module(_CUDA_MEMBER).NcclGroup(numbers)
    return group


def member_of_rank(target: str, device: int) -> Member:
    """The device of a process that is one of several, as a member of a group.

    Args:
        target: `cuda`, or the processor.
        device: Number of the CUDA device.

    Raises:
        BackendError: There is no such device.
    """
    if target != "cuda":
        return members_on_processor(1)[0]
    present = num_cuda_devices()
    if device >= present:
        raise BackendError(
            f"CUDA device {device} of this process's rank: it sees {present} devices, numbered "
            "from 0. Start as many processes a host as it has devices, or pass init(device=...)"
        )
    return members_on_cuda([device])[0]


def nccl_meeting() -> object:
    """What processes need to meet by NCCL, of the first one.

    Raises:
        BackendError: CuPy has no NCCL.
    """
    found: object = importlib.import_module(_CUDA_RANKS).meeting()
    return found


def nccl_group_of_ranks(
    ranks: Ranks, number: int, active: Sequence[int], meeting: object
) -> ProcessGroup:
    """A group of processes with a CUDA device each.

    Raises:
        BackendError: CuPy has no NCCL, or NCCL refuses.
        GroupError: A process is gone.
    """
    made = importlib.import_module(_CUDA_RANKS).NcclRankGroup
    group: ProcessGroup = made(ranks, number, active, meeting)
    return group
