"""Pictures of graphs and programs, as SVG.

`draw_graph` and `draw_program` take what a stage left, `layout` places it. They show themselves in
notebooks; nothing here compiles.
"""
