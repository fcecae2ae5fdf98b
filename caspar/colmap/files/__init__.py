"""The files of a COLMAP model: bytes and text to arrays and back.

`folder` reads and writes whole models, `binary` and `text` read and make single files. Input and
output are the arrays of `caspar.colmap.model`. A malformed file raises a `FileFormatError` with its
byte or line, and takes no more memory than its size calls for.
"""
