"""List the planes of published data, for messages: which of them fit a file of some size?

No file is read differently because of this list. So a geometry may be added.

Tests: tests/parts/data/test_spike_formats.py
"""

# Geometries of published data, most common first: (height, width, head columns). Head columns are
# columns without image at the end of each line (`SpikeGeometry.head_columns`).
KNOWN_GEOMETRIES = (
    (250, 400, 0),  # Spike-Zoo, SpikeCV, Vidar
    (360, 640, 0),  # Spk-GoPro
    (250, 400, 16),  # as the first, with columns without image
    (180, 320, 0),  # S-SDM
    (384, 384, 0),  # Spk-X4K
    (256, 256, 0),
    (1000, 1000, 0),
    (1000, 1024, 0),
    (64, 64, 0),
)


def known_geometries_of(size: int) -> str:
    """Return the published cameras with planes that fill a file of `size` bytes, for a message.

    E.g. "250 x 400 (8 planes), 250 x 400 + 16 head columns (...)", or "none".
    """
    if size == 0:
        return "none"
    fitting = []
    for height, width, head_columns in KNOWN_GEOMETRIES:
        bits_of_plane = height * (width + head_columns)
        planes_of_camera, bits_left = divmod(8 * size, bits_of_plane)
        if bits_left == 0:
            columns = f" + {head_columns} head columns" if head_columns else ""
            fitting.append(f"{height} x {width}{columns} ({planes_of_camera} planes)")
    return ", ".join(fitting) or "none"
