"""What launchers tell a process: its rank, how many there are, where the first one is.

torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT; Open MPI
OMPI_COMM_WORLD_*; Slurm (srun) SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID. Input: the environment.
Cost: once for a process.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from caspar.errors import OptionError

MASTER_OFFSET = 1
"""From MASTER_PORT, on which torchrun itself listens, to the port that rank 0 takes."""


@dataclass(frozen=True)
class Launch:
    """What a process knows of its group.

    Attributes:
        launcher: `torchrun`, `Open MPI`, `Slurm`, `CASPAR_*` or `mpi4py`.
        rank: Of the process.
        size: Processes.
        local_rank: Its number on its host: the device that it uses.
        local_size: Processes on this host; None: not known.
        job: What processes of the same job have in common, and others have not.
        address: Host and port of rank 0 by the launcher; None: not known.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int | None
    job: str
    address: tuple[str, int] | None = None

    @property
    def is_on_one_host(self) -> bool:
        """Whether all processes are on this host."""
        return self.local_size == self.size


_VARIABLES = {
    "CASPAR_*": ("CASPAR_RANK", "CASPAR_SIZE", "CASPAR_LOCAL_RANK", "CASPAR_LOCAL_SIZE"),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
}

_JOBS = (
    *("CASPAR_JOB", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE"),
    *("OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID"),
)


def launch_of(environment: Mapping[str, str]) -> Launch:
    """What a launcher has told.

    Raises:
        OptionError: No launcher has, or it contradicts itself.
    """
    for launcher, (rank, size, local_rank, local_size) in _VARIABLES.items():
        if rank in environment and size in environment:
            found = Launch(
                launcher,
                _number(environment, rank),
                _number(environment, size),
                _number(environment, local_rank, 0),
                _local_size(environment, launcher, local_size),
                "|".join(f"{name}={environment.get(name, '')}" for name in _JOBS),
                _address(environment),
            )
            if not 0 <= found.rank < found.size:
                raise OptionError(f"{rank}={found.rank} with {size}={found.size}: no such rank")
            return found
    listed = "; ".join(f"{name}: {', '.join(names[:2])}" for name, names in _VARIABLES.items())
    raise OptionError(
        "caspar.distributed.init() finds no launcher in the environment. Start the program with "
        "torchrun, mpirun or srun, or pass an mpi4py communicator. These variables are looked for: "
        f"{listed}"
    )


def _number(environment: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    text = environment.get(name)
    if text is None and otherwise is not None:
        return otherwise
    try:
        return int(str(text))
    except ValueError:
        raise OptionError(f"{name}={text!r} in the environment: must be a whole number") from None


def _local_size(environment: Mapping[str, str], launcher: str, name: str) -> int | None:
    if launcher == "Slurm":
        # tasks of a node may be as "2(x3)", and nodes differ: one node has all tasks
        nodes = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES")
        return _number(environment, "SLURM_NTASKS") if nodes == "1" else None
    return _number(environment, name) if name in environment else None


def _address(environment: Mapping[str, str]) -> tuple[str, int] | None:
    given = environment.get("CASPAR_ADDRESS")
    if given is not None:
        return address_of("CASPAR_ADDRESS", given)
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if host is None or port is None:
        return None
    return host, _number(environment, "MASTER_PORT") + MASTER_OFFSET


def address_of(where: str, text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`.

    Raises:
        OptionError: It is not of that form.
    """
    host, colon, port = text.rpartition(":")
    if colon == "" or host == "" or not port.isdigit() or int(port) > 65535:
        raise OptionError(f"{where}={text!r}: must be 'HOST:PORT', where rank 0 listens")
    return host.strip("[]"), int(port)
