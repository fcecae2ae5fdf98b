"""How far `auto` is from the best of caspar's own linear solvers, on problems of many shapes.

`cases` has the problems, `measure` solves them by every method, `page` writes the table;
`gtsam_graph` solves the pose graphs by GTSAM, in the Python that has it.
"""
