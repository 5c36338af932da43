"""Score the restored frames of one clip against its sharp frames.

finished_clip.py passes the input, the sharp and the restored frames of a clip, one frame at a time.
At the end it writes the scores of each frame, `ClipScorer.scores`, into the JSON of the clip.

What must stay: which frames are scored, and the names of what is scored ("restored", "input",
"instant 0", ...), because users' scripts read them
(test_the_numbers_equal_the_numbers_of_a_restoration_by_hand).

Tests: tests/stories/test_main_test.py, tests/parts/utils/test_results.py
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from models.metrics import METRICS_OF_TESTS, Metric, Scores, add_scores, choose_metrics
from utils.dist import watchdog
from utils.image import scored_values
from utils.options.val_options import MetricOptions

# A function (restored frame, sharp frame) -> {name of a score: value}, e.g. {"lpips": 0.12}, for
# scores beyond the scores of models/metrics.py. The frames are (H, W, 3) RGB.
MoreScores = Callable[[np.ndarray, np.ndarray], dict[str, float]]


class ClipScorer:
    """Collects the scores of the frames of one clip.

    The input is scored, too, if it has the size of the sharp frame. A method may restore several
    instants of an exposure. The instants are scored if the clip has a sharp frame for each instant.

    scores: the result, a table of tables: what is scored -> metric -> value of each frame. E.g.
        {"restored": {"psnr": [30.1, 30.4], ...}, "input": ..., "instant 0": ..., "instant 1": ...}.
    """

    def __init__(
        self, metric: MetricOptions, more_scores: MoreScores | None, is_grey: bool
    ) -> None:
        """Choose the metrics.

        metric: the section `metric` of the options. `metric.more` has the names of the metrics that
            are computed besides METRICS_OF_TESTS.
        more_scores: function that computes additional scores, or None.
        is_grey: whether the restored frames have no colour.
        """
        # The number format in which frames are scored, e.g. "uint8": rounded to 8 bits.
        self.number_format = metric.values
        self.more_scores = more_scores
        self.metrics_of_input = choose_metrics(METRICS_OF_TESTS, metric.more)
        self.metrics_of_restored = self.metrics_of_input
        if is_grey:
            # Grey frames have no colour to compare, so only metrics of the brightness (luma) apply.
            self.metrics_of_restored = [each for each in self.metrics_of_input if each.on_luma]
        # The report shows only the PSNR of the instants (`instants_psnr` in scores.py).
        self.metrics_of_instants = choose_metrics(("psnr",), more=())
        self.scores: Scores = {}

    def add(self, item: dict[str, Any], images: Sequence[np.ndarray] | np.ndarray) -> None:
        """Score a frame, and its instants if there are several.

        item: the tensors of the frame: the input "lq", and if there are sharp frames, "gt" and
            "gt_instants".
        images: the restored image of each of the K instants, (H, W, 3) each. The middle image is
            the frame.
        """
        instant_count = len(images)  # K
        if "gt" in item:
            sharp = scored_values(item["gt"], self.number_format)  # (H, W, 3)
            restored = images[instant_count // 2]  # the middle image, e.g. images[1] of 3
            self._add_frame("restored", restored, sharp, self.metrics_of_restored)
            watchdog.go_on()  # tells the watchdog that this rank still works
            blurry = item["lq"][:3]  # without the noise map, which may be a fourth channel
            # In super-resolution the input is smaller, so it has no score.
            if blurry.shape == item["gt"].shape:
                blurry_image = scored_values(blurry, self.number_format)
                self._add_frame("input", blurry_image, sharp, self.metrics_of_input)
        if instant_count > 1 and "gt_instants" in item:
            # (3 K, H, W) -> (K, 3, H, W)
            sharp_instants = item["gt_instants"].unflatten(0, (instant_count, -1))
            sharp_images = scored_values(sharp_instants, self.number_format)  # (K, H, W, 3)
            for number in range(instant_count):
                add_scores(
                    self.scores,
                    f"instant {number}",
                    images[number],
                    sharp_images[number],
                    self.metrics_of_instants,
                )

    def _add_frame(
        self, kind: str, image: np.ndarray, sharp: np.ndarray, metrics: Sequence[Metric]
    ) -> None:
        """Score a whole frame with `metrics`, and also with `more_scores`.

        kind: what is scored, "restored" or "input".
        """
        add_scores(self.scores, kind, image, sharp, metrics, self.more_scores)
