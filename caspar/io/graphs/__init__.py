"""Pose graphs: files to plain NumPy arrays and back.

Every reader returns a `PoseGraph`, in one convention whatever the file's: translation before
rotation, roots of information, poses in storage order. `lines` sorts and parses the lines of a
file by tables of tags; `assemble` makes the graph of them. Reading takes some microseconds a line.
"""
