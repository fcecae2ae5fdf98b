"""The one exception of the harness."""


class HarnessError(Exception):
    """A CUDA source that does not compile, a launch that CUDA would refuse, or a kernel fault."""
