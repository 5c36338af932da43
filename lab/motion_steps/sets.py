"""The sets of clips on which the learned steps are trained, and what they are made from.

What must stay: the order of SETS, because `lab.motion_steps.training.draw` draws from the sets in
this order. No set may come from the videos "choose" and "report" of lab/quality.py. No set may come
from the photographs on which lab/joint_gain.py tests, and `photo_files` refuses such photographs.
Free to change, for the next training: the sets. lab/joint_gain.py measures what a change gains. No
test does.
"""

from dataclasses import dataclass
from pathlib import Path

from data.clips.user_frames import FrameSource
from lab.motion_net.textures import photo_files
from lab.quality_suite.sources import VIDEOS, link_files, video_files
from utils.image import imwrite_rgb

# Four frames of each video become stills. The numbers say where these frames are: 1/2 is the middle
# of the video.
STILL_POSITIONS = (1 / 6, 1 / 3, 1 / 2, 5 / 6)
# Photographs of the package scikit-image, by name. lab/train_motion_net.py trains on these
# photographs and on five more.
PHOTOS = ("brick", "camera", "cell", "coins", "grass", "ihc", "moon", "motorcycle_left")


@dataclass(frozen=True)
class ClipSet:
    """A set of clips: its source, its pair of cameras, and how often the training draws it.

    The fields rig, clips, frames, average and crop are flags of scripts/prepare_gopro_spike.py.
    """

    source: str  # what the clips are made from: "videos", "stills" or "photos"
    rig: str  # the two cameras, e.g. "dim". data/cameras/rig_values.py has the names
    clips: int  # number of clips of each video, still or photograph
    frames: int  # number of frames of a clip
    weight: int  # a set of weight 4 is drawn twice as often as a set of weight 2
    # Number of real frames in an exposure. None lets the program choose it.
    average: int | None = None
    crop: int = 144  # side of the frames in pixels
    # Value of spike.calibration when the spikes are read. "auto" finds the position of the spike
    # camera. None assumes that the spike camera is not shifted against the RGB camera. The set
    # stills_random has None, although the random rig shifts its spike camera. So the steps are also
    # trained on what a user gets without a calibration.
    calibration: str | None = "auto"


# {name: set}. The clips of a set are in a folder of this name below --out. The first word of a name
# says what the clips are made from, and the second word the rig:
#
#     seven_           videos, an exposure is the mean of seven real frames
#     usual_           videos, the program chooses the number of real frames
#     stills_, photos_ one still or photograph that moves
#     _means           the blurry frames are means of display values (sum_gamma). No camera makes
#                      such frames.
#
# The sets show bright and dim light, other cameras, and a spike camera that is not calibrated,
# because users have all of these. The motion of "stills" and "photos" is exact, because
# `PhotoScene` moves layers that cover each other, without optical flow.
#
# `lab.motion_steps.training.draw` draws from the sets in this order. With another order, a new set
# or a new weight, the same seed draws other samples.
SETS = {
    "seven_ideal": ClipSet("videos", "ideal", clips=2, frames=4, weight=3, average=7, crop=192),
    "seven_rig": ClipSet("videos", "rig", clips=2, frames=4, weight=3, average=7, crop=192),
    "seven_dim": ClipSet("videos", "dim", clips=2, frames=4, weight=4, average=7, crop=192),
    "seven_random": ClipSet("videos", "random", clips=1, frames=3, weight=2, average=7),
    "seven_means": ClipSet("videos", "ideal,sum_gamma=2.2", clips=1, frames=2, weight=2, average=7),
    "usual_other": ClipSet("videos", "other", clips=1, frames=3, weight=2),
    "stills_ideal": ClipSet("stills", "ideal", clips=1, frames=3, weight=2),
    "stills_other": ClipSet("stills", "other", clips=1, frames=3, weight=2),
    "stills_dim": ClipSet("stills", "dim", clips=1, frames=3, weight=3),
    "stills_random": ClipSet("stills", "random", clips=1, frames=3, weight=2, calibration=None),
    "photos_ideal": ClipSet("photos", "ideal", clips=4, frames=3, weight=2),
    "photos_rig": ClipSet("photos", "rig", clips=4, frames=3, weight=2),
    "photos_dim": ClipSet("photos", "dim", clips=4, frames=3, weight=3),
}


def make_sources(out: Path, videos: Path) -> dict[str, Path]:
    """Collect what the clips are made from. Returns kind of source -> its folder.

    "videos" has links to the videos, "stills" has frames of the videos as files, and "photos" has
    links to photographs of scikit-image. E.g. with STILL_POSITIONS, a video of 90 frames gives the
    stills of its frames 15, 30, 45 and 75.
    """
    folders = {kind: out / "sources" / kind for kind in ("videos", "stills", "photos")}
    video_paths = video_files(videos, VIDEOS["train"])
    link_files(video_paths, folders["videos"])
    link_files(photo_files(f"{name}.png" for name in PHOTOS), folders["photos"])

    folders["stills"].mkdir(parents=True, exist_ok=True)
    for video in video_paths:
        frames = FrameSource(video)
        for still_index, position in enumerate(STILL_POSITIONS):
            still = folders["stills"] / f"{video.stem}_{still_index}.png"
            if not still.exists():
                frame_index = int(position * len(frames))
                imwrite_rgb(still, frames.read(frame_index))
    return folders
