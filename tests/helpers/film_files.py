"""Writes film files as a user's camera, phone or program may make them.

The frames of a film may last for different times, data may be lost, a player may have to turn the
picture, and a film may have a cover picture. `moving_scene` and `write_scene_spikes` make a scene
and its spikes. Times are in seconds. They are fractions, so that sums of them are exact.
"""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.stream import Disposition

from data.spike.formats import write_spikes
from data.spike.geometry import SpikeGeometry

# Height and width of the films of noise, and of the scene.
SIZE = (48, 64)
# Ticks per second of the clock of films from `write_film`. With this number, 1/25 s, 1/30 s and
# 1/60 s are whole numbers of ticks: 768, 640 and 320.
CLOCK = 19200
# Frames per second of all other films, unless a test gives another rate.
FPS = 25

# ---- Films ----


def write_film(path: Path, frames: Sequence[np.ndarray], starts: Sequence[Fraction]) -> None:
    """Write a lossless film of RGB frames (H, W, 3).

    starts: the time, in seconds, from which each frame is shown. A multiple of 1 / CLOCK.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    tick = Fraction(1, CLOCK)
    with av.open(str(path), "w") as out:
        # "crf" 0 makes the film lossless. With "bf" 0 no frame refers to a later frame. The encoder
        # requires a rate, e.g. 60. But the rate has no effect, because each frame gets its own
        # start (pts) below.
        stream = out.add_stream("libx264rgb", rate=60, options={"crf": "0", "bf": "0"})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "rgb24"
        stream.time_base = tick
        stream.codec_context.time_base = tick
        for frame, start in zip(frames, starts, strict=True):
            image = av.VideoFrame.from_ndarray(frame, format="rgb24")
            image.pts = round(start * CLOCK)
            image.time_base = tick
            out.mux(stream.encode(image))
        out.mux(stream.encode())  # what the encoder still holds


def noise_film(
    path: Path,
    count: int,
    codec: str = "libx264",
    rate: Fraction = Fraction(FPS),
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
) -> None:
    """Write a film of `count` frames of noise.

    rate: frames per second.
    options: options of the codec, e.g. {"g": "6"}. With None, every sixth frame is a key frame.
    container: options of the file format, e.g. {"movflags": "+faststart"}, or None for none.
    """
    if options is None:
        # With "bf" 0 no frame refers to a later frame. With "g" 6 every sixth frame is a key frame,
        # which can be decoded without other frames.
        options = {"bf": "0", "g": "6"}
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=container or {}) as out:
        stream = out.add_stream(codec, rate=rate, options=options)
        stream.height, stream.width = SIZE
        stream.pix_fmt = "yuv420p"
        for number in range(count):
            noise = np.random.default_rng(number).integers(0, 255, (*SIZE, 3), np.uint8)
            image = av.VideoFrame.from_ndarray(noise, format="rgb24")
            image.pts = number
            image.time_base = 1 / rate
            out.mux(stream.encode(image))
        out.mux(stream.encode())


# FFmpeg gives this number to the first stream in an MPEG transport stream. Our films have only one.
NUMBER_OF_PICTURE_STREAM = 256


def write_film_with_lost_packets(
    path: Path, count: int, first: int, last: int, codec: str = "libx264"
) -> None:
    """Write a film of `count` frames without the data of frames `first` to `last`.

    The file is an MPEG transport stream, which consists of packets of 188 bytes. Each packet has
    the number of its stream, and says whether a frame begins in it. The bytes 1 and 2 of a packet
    have these bits:

        EBPN NNNN NNNN NNNN    E error, P priority
         B                     1 if a frame begins in this packet     mask 0x4000
           N NNNN NNNN NNNN    number of the stream                   mask 0x1FFF

    first, last: indices of the first and the last lost frame. At least one frame must follow.
    """
    noise_film(path, count, codec)
    data = path.read_bytes()
    packets = [data[begin : begin + 188] for begin in range(0, len(data), 188)]

    # Find the packets in which a frame begins.
    begins = []
    for number, packet in enumerate(packets):
        two_bytes = int.from_bytes(packet[1:3], "big")
        stream_number = two_bytes & 0x1FFF
        is_begin = two_bytes & 0x4000
        if stream_number == NUMBER_OF_PICTURE_STREAM and is_begin:
            begins.append(number)

    # The frame `last` ends where the next frame begins.
    before = packets[: begins[first]]
    after = packets[begins[last + 1] :]
    path.write_bytes(b"".join(before + after))


def write_cut_film(path: Path, count: int, share: float) -> None:
    """Write a film of `count` frames, and cut its file.

    share: the share of the file that stays, e.g. 0.6.
    """
    # With +faststart, the table of the frames is at the beginning of the file. So the cut leaves
    # the table whole, and the table also lists the frames that are lost.
    noise_film(path, count, container={"movflags": "+faststart"})
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])


def write_turned_film(path: Path, image: np.ndarray, matrix: Sequence[int]) -> None:
    """Write a lossless film of one RGB frame that a player turns, as phones do.

    matrix: (a, b, c, d) of the display matrix, e.g. (0, 1, -1, 0) for a quarter turn.
    """
    write_film(path, [image], [Fraction(0)])
    # The matrix is stored as 9 integers of 32 bits, row after row. An integer stands for a number
    # with a fraction: in the first two columns 2^16 stands for 1, in the last column 2^30.
    one = 2**16
    one_in_last_column = 2**30
    a, b, c, d = matrix
    first_row = [a * one, b * one, 0]
    second_row = [c * one, d * one, 0]
    third_row = [0, 0, one_in_last_column]
    values = [*first_row, *second_row, *third_row]
    stored = np.array(values, ">i4").tobytes()
    # In the box "tkhd" (track header) of an MP4, 40 bytes lie between the name and the matrix.
    content = path.read_bytes()
    end_of_name = content.index(b"tkhd") + len(b"tkhd")
    begin = end_of_name + 40
    path.write_bytes(content[:begin] + stored + content[begin + len(stored) :])


def write_film_with_cover(path: Path, cover: np.ndarray, frames: Sequence[np.ndarray]) -> None:
    """Write an MP4 whose first stream is a cover picture.

    frames: the RGB frames of the second stream. Without frames the second stream is an empty audio
        stream, so the file is a song with a cover.
    """
    with av.open(str(path), "w") as out:
        picture = out.add_stream("png", rate=1)
        picture.disposition = Disposition.attached_pic
        streams = [(picture, "rgb24", [cover])]  # (stream, pixel format, RGB pictures)
        if frames:
            streams.append((out.add_stream("libx264", rate=FPS), "yuv420p", frames))
        else:
            out.add_stream("aac", rate=8000)
        # All streams must be described before the first picture is written.
        for stream, pix_fmt, images in streams:
            stream.height, stream.width = images[0].shape[:2]
            stream.pix_fmt = pix_fmt
        for stream, _, images in streams:
            for number, image in enumerate(images):
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.pts = number
                frame.time_base = Fraction(1, FPS)
                out.mux(stream.encode(frame))
            out.mux(stream.encode())  # the packets that the encoder still holds
    path.write_bytes(_with_cover_first(path.read_bytes()))


def _with_cover_first(content: bytes) -> bytes:
    """Return an MP4 in which the cover stands before the other streams.

    An MP4 is made of boxes: 4 bytes for the length of the whole box, 4 bytes for the name, then the
    content. The content of the box "moov" (movie) is a row of boxes: one for each stream, and
    "udta" with the cover.

        moov [mvhd trak udta]    ->    moov [udta mvhd trak]
    """
    # The box "moov" begins with its length, 4 bytes before its name.
    begin = content.index(b"moov") - 4
    begin_of_boxes = begin + 8
    end = begin + int.from_bytes(content[begin : begin + 4], "big")
    boxes = []
    position = begin_of_boxes
    while position < end:
        length = int.from_bytes(content[position : position + 4], "big")
        boxes.append(content[position : position + length])
        position += length
    # The bytes 4 to 7 of a box are its name.
    covers = [box for box in boxes if box[4:8] == b"udta"]
    others = [box for box in boxes if box[4:8] != b"udta"]
    return content[:begin_of_boxes] + b"".join(covers + others) + content[end:]


def write_film_of_two_sizes(path: Path, first: np.ndarray, second: np.ndarray) -> None:
    """Write a transport stream of three frames of one size, then three frames of another.

    first, second: the RGB picture that the three frames show.
    """
    parts = []
    for part_number, image in enumerate((first, second)):
        part = path.with_name(f"part{part_number}.ts")
        with av.open(str(part), "w") as out:
            stream = out.add_stream("libx264", rate=FPS, options={"bf": "0"})
            stream.height, stream.width = image.shape[:2]
            stream.pix_fmt = "yuv420p"
            for frame_number in range(3):
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.pts = 3 * part_number + frame_number
                frame.time_base = Fraction(1, FPS)
                out.mux(stream.encode(frame))
            out.mux(stream.encode())
        parts.append(part.read_bytes())
        part.unlink()
    # Two transport streams, one behind the other, are a valid transport stream.
    path.write_bytes(b"".join(parts))


def starts_of(lengths: Sequence[Fraction]) -> list[Fraction]:
    """Return the starts of frames that follow one another, e.g. 0, 2, 5 for lengths 2, 3, 1.

    lengths: how long each frame lasts.
    """
    starts = []
    time = Fraction(0)
    for length in lengths:
        starts.append(time)
        time += length
    return starts


# ---- A scene for both cameras ----


def moving_scene(planes: int, speed: float = 0.12) -> np.ndarray:
    """Return light (planes, 48, 64) in [0, 1] of stripes that move by `speed` pixels per plane.

    The numbers of the two kinds of stripes were chosen by hand. The light stays between
    0.45 - 0.4 = 0.05 and 0.45 + 0.4 = 0.85.
    """
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]].astype(np.float32)  # (48, 64) each
    shift = speed * np.arange(planes, dtype=np.float32)[:, None, None]  # (planes, 1, 1)
    upright = 0.25 * np.sin((columns - shift) / 2.5)
    slanting = 0.15 * np.sin((columns - shift) / 5 + rows / 6)
    return 0.45 + (upright + slanting)


def write_scene_spikes(path: Path, light: np.ndarray) -> None:
    """Write the spikes of an ideal sensor: each pixel sums its light, and fires at 1, 2, 3, ...

    light: (planes, H, W), from `moving_scene`.
    """
    # Each sum begins at 0.5. A pixel fires in each plane in which its sum passes a whole number.
    # E.g. with a light of 0.4 the sums are 0.9, 1.3, 1.7, 2.1: the pixel fires in planes 1 and 3.
    charge = np.cumsum(light, axis=0, dtype=np.float64) + 0.5
    spikes = np.diff(np.floor(charge), axis=0, prepend=0.0) > 0
    write_spikes(path, spikes.astype(np.uint8), SpikeGeometry(*light.shape[1:]))
