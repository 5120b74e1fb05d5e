"""The tile of the kernel, for whoever lays out rows for it."""

TILE_ROWS = 64  # of one wgmma: groups have a multiple of these
