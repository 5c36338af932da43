"""Find when the frames of a film were taken, and which of its frames are missing.

A decoder leaves out frames of a damaged film without an error. But a container (.mp4, .mkv, ...)
stores each encoded frame as a packet with a time, and packets can be read without decoding. So
`film_times` compares the times of the packets with the times of the decoded frames. If no frame has
the time of a packet, a frame is missing. data/clips/user_clip.py calls `film_times` for a user's
film.

What must stay:

* Each missing frame is found (test_lost_frames_are_named cuts films). The times say which planes of
  a spike file belong to which frame. If a gap were not noticed, all later frames would get wrong
  planes.
* In an undamaged film, no frame is reported as missing (test_a_sound_film_lacks_no_frame).

Free to change: the warnings.

Tests: tests/parts/data/test_frame_times.py, tests/stories/test_foreign_files.py
"""

import bisect
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from data.cameras.frame_times import FrameTimes, Gap, times_of_film, usual_step
from data.cameras.name_times import MOST_DISTANCES_WITHOUT_GAP
from utils.video.container import FFMPEG_ERRORS, open_container

logger = logging.getLogger(__name__)

# Containers in which packets follow one another without a pause, so that a gap in their times
# proves that a packet is lost. In other containers, e.g. MP4 and Matroska, a frame may last longer
# than usual, and a gap proves nothing.
CONTAINERS_WITHOUT_PAUSES = frozenset({"mpegts", "mpeg", "rtp", "rtsp"})

# Number of packets that are read between two calls of `go_on`. A packet is read within
# microseconds, so a call for each packet would take longer than the reading.
PACKETS_PER_CALL = 1000
# Largest number of damaged frames that a warning names, so that the warning fits on one line.
MOST_NAMED_FRAMES = 5


@dataclass
class Packets:
    """The frames of one video stream, as the container lists them. No frame is decoded."""

    stated: int  # number of frames that the header of the container states; 0 if it states none
    # Whether a frame may last longer than usual in this container (a pause). If so, a gap in the
    # times does not prove that a frame is missing.
    has_pauses: bool
    # Time in seconds of each packet whose frame is shown. `_packets_of` sorts the times.
    times: list[Fraction] = field(default_factory=list)
    # Times of the packets that the container marks as damaged, in the order of the file.
    damaged: list[Fraction] = field(default_factory=list)
    count: int = 0  # number of all packets, also of packets that are not shown


def film_times(
    path: Path, times: Sequence[Fraction], go_on: Callable[[], object] = lambda: None
) -> FrameTimes:
    """Return the times of a film's frames, and which frames are missing.

    Warns of damaged frames.

    times: time in seconds of each decoded frame, in order.
    go_on: called after each 1000 packets (PACKETS_PER_CALL), so that the watchdog sees progress.
    """
    packets = _packets_of(path, times, go_on)
    if packets is None:
        # No stream has packets at these times. The reader could not use the time stamps of the
        # film, so the reader has computed the times from the frame rate. `doubt` tells the user
        # that the film has no times. The time of a single frame does not matter, so a single frame
        # gets no doubt.
        doubt = "the film does not tell the times of its frames" if len(times) > 1 else ""
        return times_of_film(times, doubt=doubt)
    if packets.damaged:
        _warn_of_damaged(path, packets.damaged)
    # With a single frame, the usual distance of two frames is unknown, so missing frames cannot be
    # counted.
    if len(times) < 2:
        return times_of_film(times)
    step = usual_step(times)  # the usual distance of two frames in seconds
    gaps = _missing_between_frames(packets, times, step)
    # Number of the frame after the last decoded frame. Missing frames are numbered, too: four
    # decoded and two missing frames have the numbers 0 ... 5, so the next number is 6.
    next_number = len(times) + sum(gap.count for gap in gaps)
    gaps += _missing_at_end(packets, times[-1], step, next_number)
    return times_of_film(times, gaps)


def _warn_of_damaged(path: Path, times: Sequence[Fraction]) -> None:
    """Warn that the data of some frames are damaged.

    times: the times of the damaged frames, in seconds.
    """
    shown = [f"{float(time):.3f} s" for time in times[:MOST_NAMED_FRAMES]]
    if len(times) > MOST_NAMED_FRAMES:
        shown.append("...")
    logger.warning("%s: the data of frames are damaged: at %s", path, ", ".join(shown))


def _packets_of(
    path: Path, times: Sequence[Fraction], go_on: Callable[[], object]
) -> Packets | None:
    """Return the packets of the video stream to which the decoded frames belong.

    times: time in seconds of each decoded frame.
    go_on: called after each 1000 packets.
    Returns None if no stream has packets at the times of all frames.
    """
    # A film may have several video streams, e.g. a cover. The decoded frames belong to the stream
    # that has a packet at the time of each frame.
    for packets in _packets_of_streams(path, go_on):
        if set(times) <= set(packets.times):
            packets.times.sort()
            return packets
    return None


def _packets_of_streams(path: Path, go_on: Callable[[], object]) -> list[Packets]:
    """Read the packets of each video stream of a film, up to the point where it is damaged.

    go_on: called after each 1000 packets.
    """
    packets_of_stream: dict[int, Packets] = {}  # {index of the stream: its packets}
    try:
        with open_container(str(path)) as container:
            # A container may have several names, such as "mov,mp4,m4a".
            names = container.format.name.split(",")
            # True if none of the names is in CONTAINERS_WITHOUT_PAUSES.
            has_pauses = CONTAINERS_WITHOUT_PAUSES.isdisjoint(names)
            for stream in container.streams.video:
                packets_of_stream[stream.index] = Packets(
                    stated=stream.frames, has_pauses=has_pauses
                )
            # `demux(video=...)` takes indices among the video streams: 0, 1, ... Audio streams do
            # not count.
            every_video_stream = tuple(range(len(packets_of_stream)))
            for number, packet in enumerate(container.demux(video=every_video_stream), 1):
                if number % PACKETS_PER_CALL == 0:
                    go_on()
                # PyAV yields an empty packet at the end of each stream.
                if packet.size:
                    _add_packet(packet, packets_of_stream[packet.stream.index])
    except FFMPEG_ERRORS as e:
        # The file is damaged after the last packet that was read. The decoder has ended at the same
        # place, so no further packets are needed.
        logger.debug("%s: its packets cannot be read to the end: %s", path, e)
    return list(packets_of_stream.values())


def _add_packet(packet: Any, packets: Packets) -> None:
    """Add a packet of PyAV to the packets of its stream."""
    packets.count += 1  # also counts a packet that is left out of `times` below
    # Leave out packets without a time, and packets that are decoded but never shown.
    if packet.pts is None or packet.is_discard:
        return
    time = packet.pts * Fraction(packet.time_base)  # in seconds
    packets.times.append(time)
    if packet.is_corrupt:
        packets.damaged.append(time)


def _missing_between_frames(
    packets: Packets, times: Sequence[Fraction], step: Fraction
) -> list[Gap]:
    """Return the frames that are missing before the first decoded frame and between frames.

    times: times of the decoded frames.
    step: the usual distance of two frames in seconds.

    E.g. with packets at 0, 1, 2, 3, 4 and 5 s:

        decoded at 0, 1, 4, 5 s    two frames are missing (numbers 2 and 3)
        decoded at 2, 3, 4, 5 s    two frames are missing (numbers 0 and 1)

    Test: test_lost_frames_are_named
    """
    # Times of the packets from which no frame was decoded, in order.
    lost_times = sorted(set(packets.times) - set(times))
    gaps = []
    # Number of the next frame in the whole film. Missing frames are counted, too. E.g. frames are
    # decoded at 0, 1, 4 and 5 s: after the frame at 1 s, the next number is 2. So the gap has the
    # number 2 and the count 2. The next number is 4, for the frame at 4 s.
    next_number = 0
    lost_before_first = [time for time in lost_times if time < times[0]]
    if lost_before_first:
        count = len(lost_before_first)
        gaps.append(Gap(number=0, count=count, seconds=lost_before_first[0]))
        next_number = count
    for before, after in itertools.pairwise(times):
        next_number += 1  # counts the frame at `before`
        # lost_times[first:end] are the times of the lost packets between `before` and `after`. E.g.
        # with lost packets at 2 and 3 s, and frames at 1 and 4 s: first is 0, end is 2.
        first = bisect.bisect_right(lost_times, before)
        end = bisect.bisect_left(lost_times, after)
        lost_packets = end - first
        count = _number_of_missing(after - before, step, lost_packets, packets.has_pauses)
        if count:
            gaps.append(Gap(number=next_number, count=count, seconds=before + step))
            next_number += count
    return gaps


def _number_of_missing(
    distance: Fraction, step: Fraction, lost_packets: int, has_pauses: bool
) -> int:
    """Return how many frames are missing between two decoded frames.

    distance: time from the earlier frame to the later frame, in seconds.
    step: the usual distance.
    lost_packets: number of packets between the two frames from which no frame was decoded.
    has_pauses: whether a frame may last longer than other frames in this container.

    A distance of up to 1.5 steps (MOST_DISTANCES_WITHOUT_GAP) is not a gap. E.g.:

        distance     lost packets    pauses    missing
        1.4 steps    any             any       0, because the distance is nearer to 1 step than to 2
        3 steps      0               yes       0, because the frame may only last longer than usual
        3 steps      0               no        2
        3 steps      1               any       2
        3 steps      4               any       4

    Test of the second row: test_frames_of_a_film_have_the_planes_of_their_times
    """
    is_long = distance > MOST_DISTANCES_WITHOUT_GAP * step
    has_proof = lost_packets > 0 or not has_pauses
    if not is_long or not has_proof:
        return 0
    # The file itself may lack packets, so frames are also counted by the distance: with a distance
    # of 3 steps, two frames are missing.
    missing_by_distance = round(distance / step) - 1
    return max(missing_by_distance, lost_packets)


def _missing_at_end(
    packets: Packets, last: Fraction, step: Fraction, next_number: int
) -> list[Gap]:
    """Return the gap after the last decoded frame, in a list. Returns [] if no frame is missing.

    last: time of the last decoded frame.
    step: the usual distance of two frames in seconds.
    next_number: number of the first missing frame in the whole film.

    Test: test_the_lost_end_of_a_film_takes_its_planes_with_it
    """
    count = sum(1 for time in packets.times if time > last)
    # A file that is cut short may still state the number of all its frames in its header.
    if packets.stated > packets.count:
        count += packets.stated - packets.count
    if not count:
        return []
    return [Gap(number=next_number, count=count, seconds=last + step)]
