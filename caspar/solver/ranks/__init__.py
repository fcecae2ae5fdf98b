"""One problem in several processes, each with a device of its own.

Input: what each rank of a launch passes, parts of a problem or, at rank 0, all of it. All ranks
read and choose together (`reading`, `sharing`); then each sets up and solves its part, as the
threads of `shards` do. Whoever fails ends all.
"""
