"""`caspar graph`: pose graphs on the command line.

`arguments` says what can be asked for; its `--help` loads no solver. `command` does it: it reads,
solves, reports and writes.
"""
