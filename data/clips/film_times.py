"""When the frames of a film were taken, and which of its frames cannot be decoded.

A decoder leaves out frames of a damaged film without an error. The packets of the container, which
need no decoding, tell the times of these frames.
"""

import bisect
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from data.cameras.frame_times import LONG, FrameTimes, Missing, times_of_film, usual_step
from utils.video import FFMPEG_ERRORS, open_container

logger = logging.getLogger(__name__)

# Containers in which a packet is followed by the next one at once, so a gap is a lost packet. In
# others, such as MP4 and Matroska, a gap without a packet is a frame that lasts longer.
WITHOUT_PAUSES = ("mpegts", "mpeg", "rtp", "rtsp")

# Packets are read within microseconds, so not each one is a sign of life.
PACKETS_A_CALL = 1000


@dataclass
class Packets:
    """What a container says of the frames of a stream, decoded or not.

    times: seconds of each packet that should be shown, in order. damaged: those of them that the
    container marks as damaged. count: number of all packets.
    stated: number of frames that the container states; 0: it states none.
    has_pauses: whether a frame may last longer than others in this container.
    """

    stated: int
    has_pauses: bool
    times: list[Fraction] = field(default_factory=list)
    damaged: list[Fraction] = field(default_factory=list)
    count: int = 0


def film_times(
    path: Path, times: Sequence[Fraction], go_on: Callable[[], object] = lambda: None
) -> FrameTimes:
    """Return the times of a film's frames, with the frames that are missing.

    times: seconds of each decoded frame. go_on: called now and then. Warns of damaged frames.
    """
    packets = _packets_of(path, times, go_on)
    if packets is None:
        # The reader has made up the times, because the frames have none that can be used.
        doubt = "the film does not tell the times of its frames" if len(times) > 1 else ""
        return times_of_film(times, doubt=doubt)
    if packets.damaged:
        some = ", ".join(f"{float(time):.3f} s" for time in packets.damaged[:5])
        more = ", ..." if len(packets.damaged) > 5 else ""
        logger.warning("%s: the data of frames are damaged: at %s%s", path, some, more)
    if len(times) < 2:
        return times_of_film(times)
    step = usual_step(times)
    missing = _lost_between(packets, times, step)
    number = len(times) + sum(gap.count for gap in missing)
    missing += _lost_at_end(packets, times[-1], step, number)
    return times_of_film(times, missing)


def _packets_of(
    path: Path, times: Sequence[Fraction], go_on: Callable[[], object]
) -> Packets | None:
    """Read the packets of the stream that has the decoded frames.

    Returns None if no stream has packets at the times of all frames.
    """
    found: dict[int, Packets] = {}  # by the index of the stream
    try:
        with open_container(str(path)) as container:
            has_pauses = not set(container.format.name.split(",")) & set(WITHOUT_PAUSES)
            for stream in container.streams.video:
                found[stream.index] = Packets(stream.frames, has_pauses)
            for number, packet in enumerate(container.demux(video=tuple(range(len(found)))), 1):
                if number % PACKETS_A_CALL == 0:
                    go_on()
                if packet.size:
                    _add(packet, found[packet.stream.index])
    except FFMPEG_ERRORS as e:
        # The frames before the damage were decoded, so their packets are known too.
        logger.debug("%s: its packets cannot be read to the end: %s", path, e)
    for packets in found.values():
        if set(times) <= set(packets.times):
            packets.times.sort()
            return packets
    return None


def _add(packet: Any, packets: Packets) -> None:
    """Add a packet of PyAV to the packets of its stream."""
    packets.count += 1
    if packet.pts is None or packet.is_discard:
        return
    time = packet.pts * Fraction(packet.time_base)
    packets.times.append(time)
    if packet.is_corrupt:
        packets.damaged.append(time)


def _lost_between(packets: Packets, times: Sequence[Fraction], step: Fraction) -> list[Missing]:
    """Return the frames that are missing before and between the decoded ones.

    step: the usual distance of two frames.
    """
    lost = sorted(set(packets.times) - set(times))
    early = [time for time in lost if time < times[0]]
    missing = []
    number = 0  # of the next frame, if all were there
    if early:
        missing.append(Missing(0, len(early), early[0]))
        number = len(early)
    for before, after in itertools.pairwise(times):
        number += 1
        distance = after - before
        inside = bisect.bisect_left(lost, after) - bisect.bisect_right(lost, before)
        count = 0
        if distance > LONG * step and (inside or not packets.has_pauses):
            count = max(round(distance / step) - 1, inside)
        if count:
            missing.append(Missing(number, count, before + step))
            number += count
    return missing


def _lost_at_end(packets: Packets, last: Fraction, step: Fraction, number: int) -> list[Missing]:
    """Return the frames that are missing after the last decoded one.

    last: its time. step: see `_lost_between`. number: of the first missing frame.
    """
    late = [time for time in packets.times if time > last]
    count = len(late)
    # Of a file that is cut short, the table of contents still has all frames.
    if packets.stated > packets.count:
        count += packets.stated - packets.count
    if not count:
        return []
    return [Missing(number, count, last + step)]
