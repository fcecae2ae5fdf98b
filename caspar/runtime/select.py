"""Choosing a backend."""

import ctypes
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from caspar.errors import BackendError, OptionError
from caspar.options import BackendChoice, choice
from caspar.runtime.backend import Backend, BackendTraits
from caspar.runtime.group.member import Group, Member

if TYPE_CHECKING:
    from caspar.runtime.group.ranks import Ranks
    from caspar.runtime.group.sockets import ProcessGroup


def chosen_backend(given: str | BackendChoice | Backend) -> Backend:
    """The backend that a user means: a name, a member of `BackendChoice`, or a backend itself.

    Raises an `OptionError` for anything else, a `BackendError` if CUDA is not usable.
    """
    if isinstance(given, str | BackendChoice):
        return select_backend(choice(BackendChoice, "backend", given))
    if isinstance(given, type) or not isinstance(getattr(given, "traits", None), BackendTraits):
        allowed = ", ".join(repr(one.value) for one in BackendChoice)
        raise OptionError(f"backend={given!r}: must be one of {allowed}, or a backend object")
    return given


def select_backend(chosen: BackendChoice) -> Backend:
    """The backend of a choice; its library is imported only now.

    A `BackendError` says why CUDA is not usable and what to install.
    """
    match chosen_target(chosen):
        case "cuda":
            from caspar.runtime.cuda.backend import CudaBackend

            return CudaBackend()
        case "cpu":
            from caspar.runtime.cpu.backend import CpuBackend

            return CpuBackend()
        case other:
            raise AssertionError(f"no backend for {other}")


def chosen_target(chosen: BackendChoice) -> str:
    """`cuda` or `cpu`, without a context on any device; raises as `select_backend`."""
    if chosen is BackendChoice.CPU:
        return "cpu"
    if chosen is BackendChoice.AUTO and load_cuda_driver() is None:
        return "cpu"
    from caspar.runtime.nvidia.probe import cuda_problem

    problem = cuda_problem()
    if problem is None:
        return "cuda"
    if chosen is BackendChoice.CUDA:
        raise BackendError(
            f"backend='cuda': {problem}. `caspar doctor` tells what is missing; "
            "backend='cpu' needs no GPU"
        )
    return "cpu"


def load_cuda_driver() -> Any:
    """The library of the NVIDIA driver; None if it is not installed."""
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


def members_on_processor(size: int) -> list[Member]:
    """Parts of the host, which share its cores."""
    from caspar.runtime.cpu.member import CpuMember

    return [CpuMember() for _ in range(size)]


def num_cuda_devices() -> int:
    """CUDA devices that this process sees."""
    from caspar.runtime.cuda.nccl import num_devices

    return num_devices()


def members_on_cuda(numbers: Sequence[int]) -> list[Member]:
    """CUDA devices by their numbers."""
    from caspar.runtime.cuda.nccl import CudaMember

    return [CudaMember(number) for number in numbers]


def nccl_group(numbers: Sequence[int]) -> Group:
    """A group of these devices; `BackendError` if CuPy has no NCCL, or NCCL refuses."""
    from caspar.runtime.cuda.nccl import NcclGroup

    return NcclGroup(numbers)


def member_of_rank(target: str, device: int) -> Member:
    """The processor, or the CUDA device of that number, as a member of a group of processes."""
    if target == "cpu":
        return members_on_processor(1)[0]
    assert target == "cuda", target
    present = num_cuda_devices()
    if device >= present:
        raise BackendError(
            f"CUDA device {device} of this process's rank: it sees {present} devices, numbered "
            "from 0. Start as many processes a host as it has devices, or pass init(device=...)"
        )
    return members_on_cuda([device])[0]


def nccl_meeting() -> object:
    """Return what processes need to meet by NCCL, from the first one."""
    from caspar.runtime.cuda.nccl import meeting

    return meeting()


def nccl_group_of_ranks(
    ranks: "Ranks", number: int, active: Sequence[int], meeting: Any
) -> "ProcessGroup":
    """A group of processes with a CUDA device each; raises as `nccl_group`, and `GroupError`."""
    from caspar.runtime.cuda.nccl import NcclRankGroup

    return NcclRankGroup(ranks, number, active, meeting)
