"""Films whose frames last for different times, with the spikes of the same scene."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.stream import Disposition

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


def write_turned_film(path: Path, image: np.ndarray, matrix: Sequence[int]) -> None:
    """A lossless film of one RGB frame with a display matrix (a, b, c, d) in quarter turns."""
    write_film(path, [image], [Fraction(0)])
    one = 2**16
    a, b, c, d = (one * value for value in matrix)
    content = path.read_bytes()
    begin = content.index(b"tkhd") + 4 + 40
    stored = np.array([a, b, 0, c, d, 0, 0, 0, 2**30], ">i4").tobytes()
    path.write_bytes(content[:begin] + stored + content[begin + len(stored) :])


def write_film_with_cover(path: Path, cover: np.ndarray, frames: Sequence[np.ndarray]) -> None:
    """An MP4 whose first stream is a cover picture; without frames, one of a song."""
    with av.open(str(path), "w") as out:
        picture = out.add_stream("png", rate=1)
        picture.disposition = Disposition.attached_pic
        pixels = [(picture, "rgb24", [cover])]
        if frames:
            pixels.append((out.add_stream("libx264", rate=25), "yuv420p", frames))
        else:
            out.add_stream("aac", rate=8000)
        for stream, pix_fmt, images in pixels:
            stream.height, stream.width, stream.pix_fmt = *images[0].shape[:2], pix_fmt
        for stream, _, images in pixels:
            for number, image in enumerate(images):
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.pts, frame.time_base = number, Fraction(1, 25)
                out.mux(stream.encode(frame))
            out.mux(stream.encode())
    path.write_bytes(_with_cover_first(path.read_bytes()))


def _with_cover_first(content: bytes) -> bytes:
    """An MP4 in which the box of the cover stands before those of the streams."""
    begin = content.index(b"moov") - 4
    end = begin + int.from_bytes(content[begin : begin + 4], "big")
    boxes = []
    at = begin + 8
    while at < end:
        size = int.from_bytes(content[at : at + 4], "big")
        boxes.append(content[at : at + size])
        at += size
    boxes.sort(key=lambda box: box[4:8] != b"udta")
    return content[: begin + 8] + b"".join(boxes) + content[end:]


def write_film_of_two_sizes(path: Path, first: np.ndarray, second: np.ndarray) -> None:
    """A transport stream of three frames of one size, then three of another."""
    parts = []
    for number, image in enumerate((first, second)):
        part = path.with_name(f"part{number}.ts")
        with av.open(str(part), "w") as out:
            stream = out.add_stream("libx264", rate=25, options={"bf": "0"})
            stream.height, stream.width, stream.pix_fmt = *image.shape[:2], "yuv420p"
            for frame_number in range(3):
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.pts, frame.time_base = 3 * number + frame_number, Fraction(1, 25)
                out.mux(stream.encode(frame))
            out.mux(stream.encode())
        parts.append(part.read_bytes())
        part.unlink()
    path.write_bytes(b"".join(parts))
