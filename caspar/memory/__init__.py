"""Arrays as kernels see them: access kinds, blocked layout, tiles of factors."""
