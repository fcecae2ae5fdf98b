"""The kernel of a batch, from the shape of its problems.

`programs`, `step_program` and `policy_program` are graphs: what a problem computes for an instance,
in a step, in a decision. `instances` and `kernel` write the loops around them, `team` those of a
warp, and `parameters` names what is passed. Output: one `KernelSource`, which the cache keeps.
"""
