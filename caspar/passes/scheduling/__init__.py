"""Turn a graph into a program: order its instructions, assign registers.

`schedule` orders them so that few values live at the same time (the paper's adaptive reordering),
`assign_registers` gives each a register. They do not change what is computed.
"""
