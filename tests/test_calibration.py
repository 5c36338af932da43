import json

import pytest

from data.calibration import Calibration, load_calibration, save_calibration
from utils.errors import DataError

GOOD = {"format": 1, "matrix": [[1.5, 0, 3], [0, 1.5, -2]], "spike_size": [8, 12], "rgb_size": [12, 20]}


def test_a_calibration_file_holds_what_was_saved_and_says_what_is_wrong(tmp_path):
    path = tmp_path / "calibration.json"
    saved = Calibration(**GOOD, mirror="columns", time_offset_planes=2.5, tick_hz=20000, made={"by": "hand"})
    save_calibration(path, saved)
    assert load_calibration(path) == saved and load_calibration(path).digest() == saved.digest()
    unknown = saved.model_copy(update={"tick_hz": None, "made": {}})  # neither has an effect
    assert unknown.digest() == saved.digest() != saved.model_copy(update={"mirror": "rows"}).digest()
    # Column 0 of the upright picture is column 11 of the mirrored one.
    assert (saved.to_rgb() @ [0, 0, 1]).tolist() == [1.5 * 11 + 3, -2, 1]

    singular = [[1, 2, 0], [2, 4, 0]]
    for changes, words in (
        ({"tick_rate": 1}, ["tick_rate", "tick_hz"]), ({"matrix": singular}, ["singular"]),
        ({"matrix": [[1, 0, 0], [0, 1, 0], [-0.2, 0, 1]]}, ["infinity"]), ({"matrix": [[1, 0]] * 2}, ["matrix"]),
        ({"mirror": "left"}, ["mirror", "columns"]), ({"tick_hz": 0}, ["tick_hz"]),
    ):  # fmt: skip
        path.write_text(json.dumps(GOOD | changes))
        with pytest.raises(DataError) as error:
            load_calibration(path)
        assert all(word in str(error.value) for word in [*words, str(path)]), str(error.value)
        assert error.value.expected and error.value.do
    path.write_text("{")
    for place in (path, tmp_path / "none.json"):
        with pytest.raises(DataError, match="cannot read the calibration"):
            load_calibration(place)
