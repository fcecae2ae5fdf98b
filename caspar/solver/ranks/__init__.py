"""One problem in several processes, each with a device of its own.

Input: what each rank of a launch passes, parts of a problem or, at rank 0, all of it. All ranks
read, choose and set up together (`reading`, `sharing`, `preparation`); then rank 0 iterates, as
`shards` does with threads, and the others do what it asks (`team`). Whoever fails ends all.
"""
