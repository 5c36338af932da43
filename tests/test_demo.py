"""The first thing that a user runs: two clips restored with the shipped weights, and the page that shows them."""

import json

from scripts import demo
from utils.video import VideoReader


def test_the_demo_restores_both_clips_and_shows_them(tmp_path):
    command = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "out")]
    assert demo.main(command) == 0
    clips = json.loads((tmp_path / "out/metrics.json").read_text())["clips"]
    for name, scores in clips.items():
        assert scores["restored"]["psnr"] > scores["input"]["psnr"] + 6
        video = VideoReader(tmp_path / f"out/{name}_comparison.mp4")
        height, width = video.read(0).shape[:2]
        assert video.num_frames == 8 and width > 4 * 256 and height > 256  # blurry, spikes, restored, sharp
    page = (tmp_path / "out/report.html").read_text()
    assert len(clips) == 2 and page.count('class="slider') == 2
    assert page.count('data-show="spikes"') == 2 and page.count('src="data:video/mp4;base64,') == 2

    (tmp_path / "out/report.html").unlink()
    made_with = json.loads((tmp_path / "out/run.json").read_text())
    (tmp_path / "out/run.json").write_text(json.dumps(made_with | {"settings": {"fps": 25}}))
    assert demo.main(command) == 0  # over the results of another version
    assert (tmp_path / "out/report.html").exists()
