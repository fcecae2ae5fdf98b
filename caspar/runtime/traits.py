"""Properties of a backend that others need to know, instead of asking for its name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BackendTraits:
    """Properties of a backend on which decisions outside of it rest.

    Attributes:
        target: What kernels are generated for, a key of `codegen.targets.TARGETS`: `cuda` or
            `cpu`.
        launches_are_asynchronous: Whether a call returns before its work is done, so that the
            device can work while the host decides.
        host_arrays_are_copied: Whether arrays of the host must be copied before kernels read them.
        prices_are_known: Whether the prices of ops and `Backend.machine_balance` are those of the
            device: only then is deriving Jacobians again weighed against reading them.
        factorizes_in_parallel: Whether sparse matrices are formed and factorised by the whole
            device. Where one core does it, full matrices and long lists of pairs are avoided, and
            small matrices are sparse ones.
        dense_replaces_sparse: Whether the sparse library is optional; a dense matrix takes its
            place where it is missing.
        ranges_are_known_by_order: Whether kernels follow the order of an index, which tells its
            range too: the range is then tested by building that order.
        members_share_memory: Whether devices that share a problem are parts of one host, so that
            more of them have no more memory.
        adds_up_by_nccl: Whether devices add up by NCCL; else through the memory of the host, or by
            sockets.
    """

    target: str
    launches_are_asynchronous: bool
    host_arrays_are_copied: bool
    prices_are_known: bool
    factorizes_in_parallel: bool
    dense_replaces_sparse: bool
    ranges_are_known_by_order: bool
    members_share_memory: bool
    adds_up_by_nccl: bool


CUDA_TRAITS = BackendTraits(
    target="cuda",
    launches_are_asynchronous=True,
    host_arrays_are_copied=True,
    prices_are_known=True,
    factorizes_in_parallel=True,
    dense_replaces_sparse=True,
    ranges_are_known_by_order=True,
    members_share_memory=False,
    adds_up_by_nccl=True,
)

CPU_TRAITS = BackendTraits(
    target="cpu",
    launches_are_asynchronous=False,
    host_arrays_are_copied=False,
    prices_are_known=False,
    factorizes_in_parallel=False,
    dense_replaces_sparse=False,
    ranges_are_known_by_order=False,
    members_share_memory=True,
    adds_up_by_nccl=False,
)
