"""Find which planes of the spike files belong to each frame of a clip.

A plane is one binary picture of the spike camera. The planes of one frame are its exposure. The
center of an exposure is the plane at the time of the sharp frame, e.g. plane 20 of 40. There are
two forms of clips:

    a spike file for each frame         files and frames are matched by their names
    one file for all frames             its planes are divided by spike.exposure or by the times of
                                        the frames

What must stay: a frame never gets planes of a different frame. If it is not certain which planes
belong to which frame, a problem is reported. E.g. a file with fewer planes than the other files is
a problem (test_another_number_of_planes_within_a_clip_is_refused). Free to change: the texts of the
problems, together with the tests that compare them.

Tests: tests/parts/data/test_manifest.py, tests/parts/data/test_frame_times.py,
tests/parts/data/test_timing.py
"""

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from data.cameras.frame_planes import exposures_of, plane_ranges
from data.cameras.frame_times import FrameTimes
from data.cameras.name_times import times_of_names
from data.cameras.spike_source import DatSpikes
from data.cameras.unknown_planes import UnknownPlanes
from data.clip import Exposure
from data.clips.clip_problems import ClipProblems, most_frequent, names_in_short
from data.clips.frame_files import FrameFiles
from data.clips.frame_names import FrameKey
from data.clips.listed_files import FileEntry
from data.clips.source import Source
from data.spike.errors import SpikeFileError
from data.spike.formats import count_planes
from utils.errors import DataError, OptionError
from utils.name_order import order_of
from utils.words import counted

logger = logging.getLogger(__name__)

# The exposure of each frame: which planes of which file are read for the frame (data/clip.py).
Exposures = tuple[Exposure, ...]


class SpikesOfFrames(NamedTuple):
    """The spikes of the frames of a clip."""

    # The spike file of each frame. [] if there are no spikes, or if it is not clear which planes
    # belong to which frame.
    files: list[FileEntry]
    planes: tuple[int, ...]  # number of planes in each file of `files`, e.g. 40, 40, 40
    exposures: Exposures  # for each frame, which planes are read
    # When the frames were taken. `times` is None if this is unknown or not needed.
    times: FrameTimes | None
    # How the spikes are read: a `DatSpikes` (data/cameras/spike_source.py), which has the options
    # of the section `spike`. None if there are no spikes.
    settings: DatSpikes | None


class SpikePlanes:
    """The search for the planes of each frame. Call `find` once."""

    def __init__(self, problems: ClipProblems, frame_files: FrameFiles) -> None:
        """Prepare the search.

        problems: what is wrong with the clip.
        frame_files: files of the clip, matched with its frames. The attribute `by_kind` has each
        file by its stem, e.g. {"spike": {"0047": file}}. The attribute `stems` has the stem of each
        frame, e.g. {"spike": {key of frame 47: "0047"}}. The key of a frame is what the names of
        its files have in common.
        """
        self.problems = problems
        self.frame_files = frame_files
        self.clip = problems.clip  # name of the clip
        self.source: Source = problems.source
        # How the spikes of this clip are read, None without spikes. `own_spikes` has the clips that
        # dataset.json describes one by one, and `source.spikes` is for all other clips.
        self.settings: DatSpikes | None = self.source.own_spikes.get(self.clip, self.source.spikes)

    def find(self, keys: Sequence[FrameKey], stems: Sequence[str]) -> SpikesOfFrames:
        """Return the spike files and the planes of the frames.

        keys: the frames in the order of time.
        stems: the name of each frame.
        """
        # If one file has the planes of all frames, the times of the frames may divide these planes.
        # If each frame has its own file, no times are needed. The source knows the times of a
        # user's clip, e.g. of a film. In a data set, the names of the frames may be times, such as
        # "432.033333".
        times = None
        if self.source.has_one_spike_file:
            times = self.source.times or times_of_names(stems)
        files = self._find_spike_files(keys)
        if not files or self.settings is None:
            return SpikesOfFrames(
                files, planes=(), exposures=(), times=times, settings=self.settings
            )
        return self._find_planes(files, self.settings, times)

    def _find_spike_files(self, keys: Sequence[FrameKey]) -> list[FileEntry]:
        """Return the spike file of each frame.

        A file with the planes of all frames is listed for each frame. Returns [] if there are no
        spikes, or if it is not clear which planes belong to which frame.

        keys: the frames.
        """
        # First case, a file for each frame: `find_stems` (frame_files.py) has matched the files by
        # their names. The key of a frame gives its stem, and the stem gives its file, e.g. key of
        # frame 47 -> "0047" -> "0047.dat".
        if "spike" in self.frame_files.stems:
            stems = self.frame_files.stems["spike"]
            return [self.frame_files.by_kind["spike"][stems[key]] for key in keys]
        if not self.source.has_one_spike_file:
            return []

        # Second case, one file for all frames. If there is a problem, e.g. if a frame is missing,
        # the planes of all later frames may be wrong. So no planes are assigned if this step or an
        # earlier step has found a problem.
        files = list(self.frame_files.by_kind["spike"].values())
        self._report_unsure_planes(files, first_frame=keys[0])
        if self.problems.found:
            return []
        # `files` has one file here, because two files are a problem. List it for each frame.
        return files * len(keys)

    def _report_unsure_planes(self, files: Sequence[FileEntry], first_frame: FrameKey) -> None:
        """Report if it is not certain which planes of the only spike file belong to which frame.

        files: the spike files of the clip.
        first_frame: the first frame of the clip.

        Test: test_two_files_with_exposures_are_refused
        """
        if len(files) > 1:
            shown = names_in_short(self.frame_files.by_kind["spike"])
            what = f"{len(files)} spike files: {shown}; with spike.exposure a clip has one"
            self.problems.report(what, "spike")
            return
        # The first plane of the file belongs to the first frame of the folder. If a meta file (the
        # list of the clips and their frames) lists only later frames, the planes would go to wrong
        # frames.
        lq_stems = self.frame_files.stems["lq"]
        order = order_of(lq_stems.values())  # a function: name -> sort key
        # The frame whose name comes first, e.g. the frame of "0000".
        first_of_folder = min(lq_stems, key=lambda key: order(lq_stems[key]))
        if first_frame != first_of_folder:
            what = (
                "the first listed frame is not the first of the folder, from which spike.exposure "
                "counts"
            )
            self.problems.report(what, "lq")

    def _find_planes(
        self, files: list[FileEntry], spikes: DatSpikes, times: FrameTimes | None
    ) -> SpikesOfFrames:
        """Count the planes of the files, and find which planes belong to which frame.

        files: the spike file of each frame.
        spikes: how these files are read.
        times: times of the frames, if one file holds the planes of all frames. None: each frame has
        a file, or the times are not known.
        """
        plane_counts = self._count_planes(files, spikes)  # {spike file: its number of planes}
        # A single file cannot be compared with others. The files of a user may have any lengths.
        if plane_counts and not self.source.has_one_spike_file and not self.source.is_user_clip:
            self._report_other_lengths(plane_counts, last=files[-1], spikes=spikes)

        exposures: Exposures = ()
        # The center is the plane at the time of the sharp frame. If a user's clip comes without a
        # center, `_exposures` assumes a center, and returns settings with this center.
        settings = spikes
        if not self.problems.found:
            planes_of_paths = [(file.path, count) for file, count in plane_counts.items()]
            # An error is reported as a problem of the clip.
            try:
                exposures, settings = self._exposures(planes_of_paths, len(files), spikes, times)
            except UnknownPlanes as e:
                # `e.do` proposes an exposure for each frame. The user of a single clip sees the
                # whole proposal. The table of problems of a data set only has room for a short
                # text.
                if self.source.is_user_clip:
                    raise
                do = "give spike.exposure a row [start, length] for each frame"
                self.problems.report(f"{e.what}; expected {e.expected}", files[0].path, do)
            except (DataError, OptionError) as e:
                self.problems.report(f"{e.what}; expected {e.expected}", files[0].path, e.do)
        # A file of a wrong size was reported, and has no entry in `plane_counts`. Its frame gets 0
        # planes.
        planes_of_frames = tuple(plane_counts.get(file, 0) for file in files)
        return SpikesOfFrames(files, planes_of_frames, exposures, times, settings)

    def _count_planes(self, files: Sequence[FileEntry], spikes: DatSpikes) -> dict[FileEntry, int]:
        """Return {spike file: its number of planes}, in the order of the frames.

        A file of a wrong size is reported and left out.

        files: the spike file of each frame.
        """
        plane_counts: dict[FileEntry, int] = {}
        for file in dict.fromkeys(files):  # each file once, even if several frames share a file
            try:
                count = count_planes(file.path, spikes.geometry, spikes.remainder, file.size)
                plane_counts[file] = count
            except SpikeFileError as e:
                # The problems of a data set are shown together in a table. A user's single clip
                # needs no table, so its error is raised at once.
                if self.source.is_user_clip:
                    raise
                self.problems.report(f"{e.what}; {e.expected}", file.path, e.do)
        return plane_counts

    def _report_other_lengths(
        self, plane_counts: Mapping[FileEntry, int], last: FileEntry, spikes: DatSpikes
    ) -> None:
        """Report files whose number of planes differs from the other files.

        plane_counts: {file: its number of planes}.
        spikes: how these files are read.
        last: the file of the last frame. It may have fewer planes in a clip that was made from a
        video.

        Test: test_another_number_of_planes_within_a_clip_is_refused
        """
        usual_count = most_frequent(plane_counts.values())
        # dataset.json may say how many planes a file has, and how many of them were interpolated
        # between two frames of the video. Without these numbers, `usual_count` is expected. E.g. a
        # file has 56 planes: 7 frames of the video, and 7 interpolated planes after each. After the
        # last frame of the video nothing can be interpolated, so the last file may have only 49.
        expected, fewest_in_last = spikes.info.planes_of(self.clip, usual_count)
        for file, count in plane_counts.items():
            is_accepted_last = file is last and fewest_in_last <= count <= expected
            if count != expected and not is_accepted_last:
                need = expected * spikes.geometry.plane_bytes
                found = f"spike file has {counted(count, 'plane')} ({file.size} bytes)"
                self.problems.report(f"{found}, expected {expected} ({need} bytes)", file.path)

    def _exposures(
        self,
        planes_of_paths: list[tuple[str, int]],
        frames: int,
        spikes: DatSpikes,
        times: FrameTimes | None,
    ) -> tuple[Exposures, DatSpikes]:
        """Return the planes of each frame, and the spike settings that were used to find them.

        The settings differ from `spikes` at most in the center, the plane of the sharp frame:

            a user's spikes without a center         a center is assumed, and a warning names it
            a center of the user that fits           this center is kept
            a center of the user that does not fit   an error says so, and no center is assumed

        planes_of_paths: (path, number of planes) of each spike file.
        frames: number of frames.
        spikes: how these files are read.
        times: times of the frames, if one file holds the planes of all frames. None: each frame
        has a file, or the times are not known.
        Raises OptionError, DataError.
        """
        try:
            exposures = exposures_of(
                spikes, self.clip, files=planes_of_paths, frames=frames, times=times
            )
            return exposures, spikes
        except OptionError:  # e.g. the center is unknown
            if not self.source.is_user_clip:
                raise
            _, planes_of_first_file = planes_of_paths[0]
            length = self._planes_of_first_exposure(spikes, planes_of_first_file, times)
            if self._is_center_given(spikes, length):
                raise
        # A user's clip without a center: try again with an assumed center.
        center, words = self._assumed_center(length)
        logger.warning(
            "spikes of %s: the plane of the sharp frame is unknown, %s", self.clip, words
        )
        with_center = spikes.changed(center=center)
        exposures = exposures_of(
            with_center, self.clip, files=planes_of_paths, frames=frames, times=times
        )
        return exposures, with_center

    def _planes_of_first_exposure(
        self, spikes: DatSpikes, planes_of_first_file: int, times: FrameTimes | None
    ) -> int:
        """Return the number of planes of the first exposure. Later exposures have about as many.

        spikes: how the spike files are read.
        planes_of_first_file: number of planes of the first spike file.
        times: times of the frames, if one file holds the planes of all frames. None: each frame
        has a file, or the times are not known.
        """
        # If there are times, they divide the planes of the file among the frames. Without times,
        # `span` takes the planes of spike.exposure, or the whole file if this option is not set.
        ranges = None
        if times:
            ranges = plane_ranges(spikes, self.clip, planes_of_first_file, times)
        first_exposure = spikes.timing.span(self.clip, 0, planes_of_first_file, ranges)
        return first_exposure.length

    def _is_center_given(self, spikes: DatSpikes, length: int) -> bool:
        """Return whether the user gives the plane of the sharp frame, by an option or dataset.json.

        length: number of planes of an exposure.
        """
        # "gt" stands for the plane that dataset.json names. dataset.json may name none.
        if spikes.center == "gt":
            return spikes.info.gt_plane_of(self.clip, length) is not None
        # E.g. the training had the center 20, which is in the file of the weights. If the user
        # gives no center, `spikes` has the center 20 of the training. So 20 counts as not given,
        # because the center of the training says nothing about the user's spikes. Any other center,
        # e.g. 12, must come from the user.
        trained = self.source.trained
        return trained is None or spikes.center != trained.get("center")

    def _assumed_center(self, length: int) -> tuple[int | float | str, str]:
        """Return the option `center` for a user's spikes without a center, and words for a warning.

        E.g. the training had exposures of 40 planes with the sharp frame at plane 20:

            `length`    result
            40          (20, "plane 20 is used, as in training")
            60          ("file", "the middle one is used"), because plane 20 of 60 planes would be
                        another instant than plane 20 of 40 planes

        length: number of planes of an exposure.
        """
        trained = self.source.trained
        if trained and trained["planes"] == length and trained["gt_plane"] is not None:
            center = trained["gt_plane"]
            return center, f"plane {center} is used, as in training"
        return "file", "the middle one is used"
