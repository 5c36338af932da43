"""Films whose frames last for different times, with the spikes of the same scene."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from data.spike.formats import SpikeGeometry, write_spikes

SIZE = (48, 64)
CLOCK = 19200  # ticks a second of the films


def write_film(path: Path, frames: Sequence[np.ndarray], starts: Sequence[Fraction]) -> None:
    """A lossless film of RGB frames (H, W, 3), each shown from its own start, in seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264rgb", rate=60, options={"crf": "0", "bf": "0"})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "rgb24"
        stream.time_base = stream.codec_context.time_base = Fraction(1, CLOCK)
        for frame, start in zip(frames, starts, strict=True):
            image = av.VideoFrame.from_ndarray(frame, format="rgb24")
            image.pts, image.time_base = round(start * CLOCK), Fraction(1, CLOCK)
            out.mux(stream.encode(image))
        out.mux(stream.encode())


def noise_film(
    path: Path,
    count: int,
    codec: str = "libx264",
    rate: Fraction = Fraction(25),
    options: dict[str, str] = {"bf": "0", "g": "6"},  # noqa: B006
    container: dict[str, str] | None = None,
) -> None:
    """A film of `count` frames of noise. options: of the codec. container: of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=container or {}) as out:
        stream = out.add_stream(codec, rate=rate, options=options)
        stream.height, stream.width = SIZE
        stream.pix_fmt = "yuv420p"
        for number in range(count):
            noise = np.random.default_rng(number).integers(0, 255, (*SIZE, 3), np.uint8)
            image = av.VideoFrame.from_ndarray(noise, format="rgb24")
            image.pts, image.time_base = number, 1 / rate
            out.mux(stream.encode(image))
        out.mux(stream.encode())


def write_film_with_lost_packets(
    path: Path, count: int, first: int, last: int, codec: str = "libx264"
) -> None:
    """A film of `count` frames, 25 a second, without the data of frames first ... last."""
    noise_film(path, count, codec)
    data = path.read_bytes()
    packets = [data[i : i + 188] for i in range(0, len(data), 188)]
    begins = []  # numbers of the packets in which a frame begins
    for number, packet in enumerate(packets):
        stream = int.from_bytes(packet[1:3], "big") & 0x1FFF
        if stream == 256 and packet[1] & 0x40:
            begins.append(number)
    kept = packets[: begins[first]] + packets[begins[last + 1] :]
    path.write_bytes(b"".join(kept))


def write_cut_film(path: Path, count: int, share: float) -> None:
    """A film of `count` frames, 25 a second, of whose file only the beginning is there."""
    noise_film(path, count, container={"movflags": "+faststart"})
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])


def starts_of(lengths: Sequence[Fraction]) -> list[Fraction]:
    """The starts of frames that follow one another."""
    return [sum(lengths[:number], Fraction(0)) for number in range(len(lengths))]


def moving_scene(planes: int, speed: float = 0.12) -> np.ndarray:
    """Light (planes, 48, 64) in [0, 1] of a pattern that moves `speed` pixels a plane."""
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]].astype(np.float32)
    shift = speed * np.arange(planes, dtype=np.float32)[:, None, None]
    stripes = 0.25 * np.sin((columns - shift) / 2.5) + 0.15 * np.sin(
        (columns - shift) / 5 + rows / 6
    )
    return 0.45 + stripes


def write_scene_spikes(path: Path, light: np.ndarray) -> None:
    """Spikes of an ideal sensor: each pixel sums its light and fires at 1."""
    charge = np.cumsum(light, axis=0, dtype=np.float64) + 0.5
    spikes = np.diff(np.floor(charge), axis=0, prepend=0.0) > 0
    write_spikes(path, spikes.astype(np.uint8), SpikeGeometry(*light.shape[1:]))
