"""What a calibration tells of the shutter reaches the equations of data/motion/joint/.

Keys of a calibration for the shutter:

    exposure_share    share of the planes of a frame that were exposed
    rolling           how much later the last row is exposed than the first row, as a share of the
                      exposure

"Measured" in a comment is the value when the test was written. The limit beside it leaves room for
other versions of torch.
"""

import json

import pytest

from data.motion.recording import RecordedClip
from tests.helpers.joint_case import FRAME, Case, true_motion
from tests.helpers.moving_scene import Scene, reader_of

# A spike pixel covers 2 x 2 RGB pixels.
CAMERAS = {
    "format": 1,
    "matrix": [[2, 0, 0.5], [0, 2, 0.5]],
    "spike_size": [48, 48],
    "rgb_size": [96, 96],
}


def write_calibration(path, **shutter: float) -> str:
    """Write a calibration with these keys of the shutter. Return its path as a text."""
    path.write_text(json.dumps({**CAMERAS, **shutter}))
    return str(path)


# With -0.4, the shutter begins at the last row.
@pytest.mark.parametrize("rolling", [0.4, -0.4])
def test_what_the_calibration_tells_of_the_shutter_helps(rolling, tmp_path):
    scene = Scene(velocity=(14.0, 0.0), exposure=0.7, rolling=rolling)
    folder = scene.write(tmp_path / "clip")

    def psnr_if_told(**shutter: float) -> float:
        """Return the PSNR that is reached if the calibration has these keys of the shutter."""
        calibration = write_calibration(tmp_path / "cameras.json", **shutter)
        case = Case(folder, true_motion(scene), calibration=calibration)
        return case.psnr(case.equations.solve(case.blurry))

    without = psnr_if_told()
    with_exposure = psnr_if_told(exposure_share=0.7)
    with_both = psnr_if_told(exposure_share=0.7, rolling=rolling)

    # Measured: `without` 25.1, `with_exposure` 31.1, `with_both` 34.4 dB.
    assert without + 0.5 < with_exposure
    assert with_exposure + 0.5 < with_both


def test_the_motion_takes_the_planes_that_were_exposed_and_no_others(tmp_path):
    folder = Scene(exposure=0.7).write(tmp_path / "clip")
    calibration = write_calibration(tmp_path / "cameras.json", exposure_share=0.7)
    reader = reader_of(folder, calibration=calibration)

    recording = RecordedClip(reader, context=None).read(FRAME)

    # The middle 0.7 of 60 planes were exposed: 42 planes. On each side, 21 more planes are read.
    assert recording.length == 42
    assert recording.begin == 21
    assert len(recording.stream) == 21 + 42 + 21
    # The channels of a network are made of 1.12 x 42 = 47 planes.
    assert reader.clip.exposures[FRAME].own.count == 47
