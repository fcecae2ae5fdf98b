"""One problem on several devices.

Input: a checked problem, and backends that are members of a group. Eliminated nodes and their
factors are split, nodes that remain are on every device (`split`); each device has a system of its
part, and a thread that runs all of Levenberg-Marquardt on it (`devices`, `crew`), or a process
(`ranks`). What they add up, and where, is in `solver.system.phases`; on what else they agree, in
`Communicator`.
"""
