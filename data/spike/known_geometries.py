"""List the sizes of the planes of published data. An error names the sizes that fit a file.

A geometry may be added, because the list does not change how a file is read.

Tests: tests/parts/data/test_spike_formats.py
"""

# Geometries of published data, most common first: (height, width, head columns). Head columns are
# columns without image at the end of each line (`SpikeGeometry.head_columns`).
KNOWN_GEOMETRIES = (
    (250, 400, 0),  # Spike-Zoo, SpikeCV, Vidar
    (360, 640, 0),  # Spk-GoPro
    (250, 400, 16),  # as (250, 400, 0), but with columns without image
    (180, 320, 0),  # S-SDM
    (384, 384, 0),  # Spk-X4K
    (256, 256, 0),
    (1000, 1000, 0),
    (1000, 1024, 0),
    (64, 64, 0),
)


def known_geometries_of(size: int) -> str:
    """Return the published geometries whose planes fill a file of `size` bytes, for a message.

    Returns "none" if no geometry fits. E.g. a file of 325,000 bytes has 26 planes of 250 x 400
    pixels (12,500 bytes each), or 25 planes with 16 head columns (13,000 bytes each): "250 x 400
    (26 planes), 250 x 400 + 16 head columns (25 planes)".
    """
    if size == 0:
        return "none"
    fitting = []
    for height, width, head_columns in KNOWN_GEOMETRIES:
        bits_of_plane = height * (width + head_columns)
        planes, bits_left = divmod(8 * size, bits_of_plane)
        if bits_left == 0:
            columns = f" + {head_columns} head columns" if head_columns else ""
            fitting.append(f"{height} x {width}{columns} ({planes} planes)")
    return ", ".join(fitting) or "none"
