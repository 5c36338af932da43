"""Say what a test restores, how, and where the results go.

main_test_vrt.py makes a `Job`, for a test set or a user's own clips. run_job.py restores its clips,
and report.py writes the results of all clips. Code that has a `Job` no longer reads the command
line or the option file.

What must stay: the frames that `frames_of` returns, because the restoration, the scores and the
report pair them with the names of the frames. The keys of `reading_options` must stay, too, because
they are stored (test_results_of_other_settings_are_not_taken_over). Free to add: a field. Two
functions of main_test_vrt.py make a `Job`, and both must fill in the new field.

Tests: tests/stories/test_main_test.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.restore.outputs import Outputs
from utils.contract import ClipReader, Method, wanted_frames


@dataclass(frozen=True)
class Job:
    """What is restored, how, and where the results go."""

    # What restores the frames:
    #
    #     NetworkMethod    a network, in tiles (models/restore/network_method.py)
    #     Reconstruction   a formula of the spikes (data/reconstruct.py)
    #     JointMethod      the joint solution: it solves equations of the blurry frame and its
    #                      spikes, and begins with the frames of one of the two methods above
    #                      (data/motion/joint_method.py)
    #     LearnedMotion    learned steps on such equations, which begin with the frames of a network
    #                      (data/motion/learned_method.py)
    #
    # `method.restorer(device)` returns the object that yields the frames.
    method: Method
    # The clips to restore, in the order of their names.
    clips: Sequence[ClipReader]
    # The output folder, and what is saved there.
    outputs: Outputs
    # Files of the weights of LPIPS, or empty to leave LPIPS out.
    lpips: Sequence[str]
    # Whether the results of an earlier test in the folder are removed first.
    overwrite: bool
    # The heading of the report, and the first line of the results in the log.
    title: str
    # Number of clips that there should be. The report marks averages over fewer clips.
    expected: int
    # The options that say what is read of the files and how, e.g. {"spike": {"rate": 0.4, ...}}.
    # They are stored in run.json. A later test with other options does not continue this test.
    reading_options: dict[str, Any]
    # Which frames of a clip are restored, in words, for the protocol of the report.
    frames_note: str

    def frames_of(self, clip: ClipReader) -> range:
        """Return the indices of the frames to restore."""
        return wanted_frames(len(clip.stems), self.method.center_frame_only)

    def stems_of(self, clip: ClipReader) -> list[str]:
        """Return the names of the frames to restore."""
        return [clip.stems[index] for index in self.frames_of(clip)]
