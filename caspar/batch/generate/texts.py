"""What kernels of batches are written to, by the target and by who solves a problem."""

from collections.abc import Callable

from caspar.batch.generate.shape import BatchShape, Team
from caspar.codegen.batch.cpu_text import CpuProblemText
from caspar.codegen.batch.cuda_team_text import CudaTeamText
from caspar.codegen.batch.cuda_text import CudaProblemText
from caspar.codegen.batch.text import ProblemText
from caspar.codegen.targets import Target

_TEXTS: dict[tuple[str, Team], Callable[[], ProblemText]] = {
    ("cpu", Team.THREAD): CpuProblemText,
    ("cpu", Team.WARP): CpuProblemText,
    ("cuda", Team.THREAD): CudaProblemText,
    ("cuda", Team.WARP): CudaTeamText,
}


def empty_text(shape: BatchShape, target: Target) -> ProblemText:
    """What a kernel is written to."""
    return _TEXTS[target.name, shape.team]()
