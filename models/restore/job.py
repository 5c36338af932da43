"""Say what a test restores, how, and where the results go.

The program makes a `Job` from the command line, for a test set or for a user's own clips. Then
run_job.py restores its clips, and report.py writes the results of all clips.

What must stay: the frames that `frames_of` returns, because the restoration, the scores and the
report pair them with the names of the frames.

Tests: tests/stories/test_main_test.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.restore.outputs import Outputs
from utils.contract import ClipReader, Method, wanted_frames


@dataclass(frozen=True)
class Job:
    """What is restored, how, and where the results go.

    method: what restores a frame: a network, or a classical reconstruction from spikes.
    clips: the clips to restore, in the order of their names.
    outputs: the output folder, and what is saved there.
    lpips: files of the weights of LPIPS, or empty to leave LPIPS out.
    overwrite: whether the results of an earlier test in the folder are removed first.
    title: the heading of the report, and the first line of the results in the log.
    expected: number of clips that there should be. Averages over fewer clips are marked.
    reading_options: the resolved options that say what is read of the files and how. They are
        stored in run.json. If they differ in a later test, its results are not mixed with these.
    frames_note: which frames of a clip are restored, in words, for the protocol.
    """

    method: Method
    clips: Sequence[ClipReader]
    outputs: Outputs
    lpips: Sequence[str]
    overwrite: bool
    title: str
    expected: int
    reading_options: dict[str, Any]
    frames_note: str

    def frames_of(self, clip: ClipReader) -> range:
        """Return the indices of the frames to restore."""
        return wanted_frames(len(clip.stems), self.method.center_frame_only)

    def stems_of(self, clip: ClipReader) -> list[str]:
        """Return the names of the frames to restore."""
        return [clip.stems[index] for index in self.frames_of(clip)]
