"""Define the settings of made clips, `Recipe`. The settings are written to dataset.json and
made.json.

scripts/prepare_gopro_spike.py has a flag for each setting. There are two ways to make a clip:

    without a rig   The raw frames of a fast video (240 fps) are averaged in groups of `average`
                    raw frames. Each mean is a blurry frame. The light between the raw frames is
                    interpolated, and a simulated sensor turns this light into spikes.
    with a rig      Any video or photograph is shown to a simulated pair of cameras
                    (data/cameras/rig.py). The cameras move and have flaws.

What must stay: a recipe and a source give the same files on every machine, because interrupted data
sets are continued, and data sets are published. Neither the order of random draws nor the
arithmetic may change. If the files must change, raise VERSION.
Free to add: a setting. `Recipe.record` says what it needs.

Tests: tests/parts/data/test_made_records.py, tests/parts/scripts/test_prepare_gopro_spike.py
"""

from typing import Any, Literal

from pydantic import Field

from data.cameras.dataset_info import GOPRO_NAME
from data.cameras.rig import Rig
from utils.options.section import Section
from utils.random_streams import random_stream

# Raise this number if the same recipe and source give other files than before. The program refuses
# to continue a data set of an older version, because the clips would be of two kinds. Version 2
# changed the sensor: since then, a pixel that fires keeps its charge modulo the threshold. E.g.
# with the threshold 1, a charge of 1.3 leaves 0.3.
VERSION = 2
# Settings that have an effect only without a rig (two simulated cameras). A setting that is in none
# of the sets ONLY_WITHOUT_RIG and ONLY_WITH_RIG is recorded in both cases. `Recipe.record` says
# what else a new setting needs.
ONLY_WITHOUT_RIG = {
    "interpolate", "method", "gamma", "light", "rate", "threshold", "initial_charge", "shot_noise",
    "dark_rate", "threshold_mismatch", "instants",
}  # fmt: skip
# Settings that have an effect only with a rig.
ONLY_WITH_RIG = {"rig", "side", "crop", "clips", "frames", "planes"}


class Recipe(Section):
    """The settings with which clips are made. Each setting is a flag of prepare_gopro_spike.py.

    dataset.json and the made.json of each clip store the settings that have an effect (`record`).

    A rig is a simulated pair of cameras. ONLY_WITHOUT_RIG and ONLY_WITH_RIG list the settings that
    have an effect in one case only. The settings `average`, `ratio` and `seed` always have an
    effect.

    What must stay: names and defaults, because users' commands and the records of made clips have
    them. `record` says what a new setting needs.
    """

    # Settings of clips without a rig. Of these, `average`, `ratio` and `seed` also act with a rig.
    average: int | None = Field(
        None,
        ge=1,
        description="raw frames per exposure, an odd number without a rig. Default: the number in "
        "the name of a GoPro clip, else 7. With a rig, the default is drawn from 1 to 4",
    )
    interpolate: int = Field(8, ge=1, description="spike planes per raw frame")
    method: Literal["flow", "linear"] = Field(
        "flow", description="interpolation between raw frames"
    )
    ratio: int = Field(2, ge=1, description="RGB pixels per spike pixel, each way")
    gamma: float = Field(2.2, gt=0, description="exponent from display values to light")
    light: Literal["linear", "display"] = Field("linear", description="what the sensor integrates")
    # The rate is at most 1, because a pixel fires at most once per plane.
    rate: float = Field(0.5, gt=0, le=1, description="spikes per plane at full light")
    threshold: float = Field(
        1.0,
        gt=0,
        description="charge at which a pixel fires. It hardly changes the spikes, because rate, "
        "noise and first charge are multiples of the threshold",
    )
    initial_charge: float = Field(
        1.0,
        ge=0,
        description="largest first charge of a pixel, in thresholds. The first charge is drawn "
        "uniformly from 0 to this value",
    )
    shot_noise: float = Field(
        0.0, ge=0, description="standard deviation per plane at full light, in thresholds"
    )
    dark_rate: float = Field(0.0, ge=0, description="spikes per plane without light")
    threshold_mismatch: float = Field(
        0.0, ge=0, description="relative standard deviation of the threshold between pixels"
    )
    seed: int = Field(0, ge=0, description="seed of the sensor's noise and first charge")
    instants: int = Field(
        0, ge=0, description="sharp instants to write for each exposure, an odd number. 0: none"
    )

    # Settings of clips with a rig.
    rig: str = Field(
        "none",
        description="the two cameras that record a video or photograph: ideal, rig, dim or other "
        "(NAMED in data/cameras/rig_values.py says what they are), or random: other cameras for "
        "each clip. Fields may be changed, e.g. rig,parallax=0,rate=0.2",
    )  # fmt: skip
    side: int = Field(
        288, ge=16, description="with a rig: shorter side of the scaled videos and photographs"
    )
    crop: int = Field(
        192, ge=16, description="with a rig: side of the crop that moves over the source"
    )
    clips: int = Field(4, ge=1, description="with a rig: largest number of clips of one source")
    frames: int = Field(8, ge=1, description="with a rig: frames of a clip")
    # 88 = 8 * 11: as many planes as 11 averaged raw frames of GoPro give with `interpolate` 8.
    planes: int = Field(88, ge=2, description="with a rig: spike planes per frame")

    @property
    def has_rig(self) -> bool:
        """Return whether a rig records the clips."""
        return self.rig != "none"

    def record(self) -> dict[str, Any]:
        """Return the settings with an effect, as JSON.

        Two recipes with equal records give equal clips. made.json stores the record with each clip.
        If a data set is continued, the stored record is compared with the record of the recipe.

        If you add a setting, leave it out of the record while it has its default, as `instants` is
        left out here. The records of older data sets do not have the setting, and a data set can
        only be continued if the records are equal.
        """
        if self.has_rig:
            without_effect = set(ONLY_WITHOUT_RIG)
        else:
            without_effect = set(ONLY_WITH_RIG)
        if not self.instants:
            without_effect.add("instants")
        return {key: value for key, value in self.plain().items() if key not in without_effect}

    def refuse_unknown_rig(self) -> None:
        """Raise OptionError if --rig names no rig."""
        # The name of the clip only changes the random numbers of a rig, so any name can be used.
        self.rig_of("")

    def rig_of(self, clip: str) -> Rig:
        """Return the rig that records a clip.

        Without --rig, only the spike camera is simulated. In this case, the program reads only the
        fields `rate` and `light` of the result, and writes them to dataset.json.
        Raises OptionError if --rig names no rig.
        """
        if self.has_rig:
            return Rig.of_flag(self.rig, random_stream(f"rig of clip {clip}", self.seed))
        return Rig(rate=self.rate, light=self.light)

    def raw_frames_per_exposure(self, clip: str) -> int:
        """Return the number of raw frames that are averaged to a blurry frame of a clip.

        The first line that applies decides:

            the setting `average`    if it is given
            the number in the name   for a clip of GoPro, e.g. 7 for GOPR0372_07_00
            7                        for other names, because 7 is the least number in GoPro. The
                                     description of `average` says this number, too
        """
        if self.average:
            return self.average
        name_of_gopro = GOPRO_NAME.fullmatch(clip)
        if name_of_gopro:
            return int(name_of_gopro.group(1))
        return 7

    def planes_of(self, clip: str) -> int:
        """Return the number of spike planes in a frame of a clip."""
        if self.has_rig:
            return self.planes
        return self.interpolate * self.raw_frames_per_exposure(clip)
