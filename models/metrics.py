"""Metrics of restored frames: PSNR, SSIM, and the metrics that the option `metric.more` names.

Images are (H, W, 3) RGB in 0..255: uint8, or float64 if `metric.values` is not uint8. A metric is
computed per frame, in float64, without a border crop. A new metric is one function in one file,
models/metric_<name>.py:

    @metric("mae", title="MAE", digits=2)
    def mae(restored: np.ndarray, sharp: np.ndarray, border: int = 0) -> float:
        ...

Each parameter after the two images is an option of its entry in `metric.more`.

What must stay: the values of the metrics, because published numbers are compared with them.
test_psnr_agrees_with_scikit_image and test_ssim_agrees_with_scikit_image notice other values.
Free to change: titles and decimals of the columns, because only people read them.

Tests: tests/parts/models/test_metrics.py, tests/parts/utils/test_results.py
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cv2
import numpy as np

from utils.errors import DataError, OptionError
from utils.options.registry import Registry, import_parts
from utils.options.val_options import MetricOptions

# The function of a metric, as its author writes it: (restored, sharp, **options) -> value.
Score = Callable[..., float]
# The scores of one clip: what was scored -> metric -> value of each frame. E.g.
# {"restored": {"psnr": [30.1, 30.4]}, "input": {"psnr": [28.8, 28.9]}, "instant 0": {...}}.
Scores = dict[str, dict[str, list[float]]]

# The window of SSIM along one axis: a Gaussian of sigma 1.5 over 11 pixels (source: see `ssim`).
_SSIM_KERNEL = cv2.getGaussianKernel(11, 1.5)


@dataclass(frozen=True)
class Column:
    """How a metric is shown in tables, and on which values it is computed.

    title: header of the column.
    digits: decimals of the values.
    on_luma: whether the metric compares the luma (H, W) instead of RGB. The luma is the brightness,
        16 for black and 235 for white (`rgb_to_y`). If restored frames are grey, only metrics on
        luma score them.
    """

    title: str
    digits: int
    on_luma: bool = False


@dataclass(frozen=True)
class Metric:
    """A metric with its options filled in.

    score: function (restored, sharp) -> value.
    on_luma: whether the metric takes the luma of the images, and not their colours.
    """

    name: str
    score: Callable[[np.ndarray, np.ndarray], float]
    on_luma: bool


METRICS = Registry("metric")  # the metrics that `metric.more` may name
# Metric -> its column. Tables have the columns in this order.
COLUMNS: dict[str, Column] = {}


def metric(
    name: str, *, title: str, digits: int, on_luma: bool = False
) -> Callable[[Score], Score]:
    """Return a decorator that registers a function as a metric. It returns the function unchanged.

    title, digits, on_luma: the fields of the metric's `Column`.
    """

    def add(score: Score) -> Score:
        # The program gives the first two parameters, the images. All other parameters are options.
        parameters = list(inspect.signature(score).parameters)
        register = METRICS.register(name, given=parameters[:2])  # a decorator, too
        register(score)
        COLUMNS[name] = Column(title, digits, on_luma)
        return score

    return add


@metric("psnr", title="PSNR dB", digits=2)
def psnr(restored: np.ndarray, sharp: np.ndarray) -> float:
    """Return 20 log10(255 / sqrt(MSE)) in dB, with the MSE over all values of both images.

    Returns inf if the images are equal. Raises DataError if their shapes differ.
    """
    _check_shapes(restored, sharp)
    difference = restored.astype(np.float64) - sharp.astype(np.float64)
    mse = float(np.mean(difference**2))
    if mse == 0:  # equal images: the formula would divide by 0
        return math.inf
    return 20 * float(np.log10(255.0 / np.sqrt(mse)))


@metric("ssim", title="SSIM", digits=4)
def ssim(restored: np.ndarray, sharp: np.ndarray) -> float:
    """Return the structural similarity of two images (H, W) or (H, W, C), the mean over channels.

    The result is at most 1, the value of two equal images. It is the mean over channels and pixels
    of

        SSIM = (2 mx my + c1) (2 cov + c2) / ((mx^2 + my^2 + c1) (vx + vy + c2))

    mx, my: means. vx, vy: variances. cov: covariance. Each is a weighted mean over a window of 11 x
    11 pixels around the pixel, e.g. vx = mean((x - mx)^2). The weights are a Gaussian of sigma 1.5.
    c1 = (0.01 * 255)^2, c2 = (0.03 * 255)^2. Only pixels whose window lies inside the image are
    used.

    Source: Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment: from error visibility to
    structural similarity", IEEE TIP 13(4), 2004, eq. 13 with the authors' constants and window.
    Raises DataError if the shapes differ or a side has fewer than 11 pixels.
    """
    _check_shapes(restored, sharp)
    height, width = restored.shape[:2]
    if min(height, width) < len(_SSIM_KERNEL):
        raise DataError(
            what=f"SSIM cannot score an image of {width}x{height}",
            where="",  # this function does not know the names of the images
            expected="at least 11x11 pixels",
            do="use larger frames",
        )
    x = restored.astype(np.float64)
    y = sharp.astype(np.float64)
    # Means, variances and the covariance within the window of each pixel, by
    # variance(x) = mean(x^2) - mean(x)^2. Each is (H - 10, W - 10) or (H - 10, W - 10, C).
    mx = _ssim_window(x)
    my = _ssim_window(y)
    vx = _ssim_window(x * x) - mx**2
    vy = _ssim_window(y * y) - my**2
    cov = _ssim_window(x * y) - mx * my
    c1 = (0.01 * 255) ** 2
    c2 = (0.03 * 255) ** 2
    # The formula of SSIM in the docstring.
    numerator = (2 * mx * my + c1) * (2 * cov + c2)
    denominator = (mx**2 + my**2 + c1) * (vx + vy + c2)
    return float((numerator / denominator).mean())


# Register psnr and ssim once more, on the luma: the metrics psnr_y and ssim_y. The result of
# `metric(...)` is a decorator, and `(psnr)` calls it, as "@metric(...)" above a function does.
metric("psnr_y", title="PSNR-Y dB", digits=2, on_luma=True)(psnr)
metric("ssim_y", title="SSIM-Y", digits=4, on_luma=True)(ssim)
# LPIPS has a column like the other metrics. LPIPS needs files of weights, so the flag --lpips of
# main_test_vrt.py chooses it, and not `metric.more`.
COLUMNS["lpips"] = Column("LPIPS", digits=4)

# The metrics that are always computed. `metric.more` adds others.
METRICS_OF_TESTS = ("psnr", "ssim", "psnr_y", "ssim_y")  # in a test (main_test_vrt.py)
# In a validation during training. Both metrics must stay, because utils/run reads "val/psnr" and
# "val/ssim", e.g. for the report of a run (utils/run/report.py).
METRICS_OF_VALIDATIONS = ("psnr", "ssim")


def choose_metrics(names: Sequence[str], more: Sequence[str | dict[str, Any]]) -> list[Metric]:
    """Return the metrics `names`, then the metrics of `more` (the option metric.more).

    If a metric of `names` is in `more` too, its position stays, and it gets the options of `more`.
    E.g. names ("psnr", "ssim") and more ["mae"]: psnr, ssim, mae.

    Raises OptionError for an unknown metric, for wrong options of a metric, if `more` has a metric
    twice, and if a user's metric has the name "lpips".
    """
    if "lpips" in METRICS.names():
        raise OptionError(
            what='a metric of your own has the name "lpips", which is the column of --lpips',
            where=inspect.getfile(METRICS.constructor("lpips")),
            expected="another name: a table has one column for each name",
            do="register the metric by another name",
        )
    # Name of a metric -> the metric. `constructor` returns the function that is registered under a
    # name, e.g. "psnr" -> the function `psnr`.
    metrics = {}
    for name in names:
        metrics[name] = Metric(name, METRICS.constructor(name), COLUMNS[name].on_luma)
    names_in_more: set[str] = set()
    for index, entry in enumerate(more):
        # The entry as a dict with all options, e.g. "mae" -> {"type": "mae", "border": 0}.
        options = METRICS.resolve(entry, f"metric.more.{index}").plain()
        name = options.pop("type")
        if name in names_in_more:
            raise OptionError(
                what=f'metric.more has "{name}" twice',
                where="metric.more",
                expected="each metric once: a table has one column for it",
                do="remove one of them",
            )
        names_in_more.add(name)
        # `partial` fills in the options of the registered function.
        score = partial(METRICS.constructor(name), **options)
        metrics[name] = Metric(name, score, COLUMNS[name].on_luma)
    return list(metrics.values())


def check_metrics(section: MetricOptions) -> None:
    """Raise OptionError if `metric.more` names an unknown metric or a wrong option of a metric."""
    choose_metrics((), section.more)  # called only for its errors


def metrics_in_words(more: Sequence[str | dict[str, Any]]) -> str:
    """Return the metrics of `metric.more` for the report, e.g. "mae (border 4): Mean error."."""
    texts = []
    for entry in more:
        options = METRICS.resolve(entry, "metric.more").plain()
        name = options.pop("type")
        text = name
        if options:
            in_words = ", ".join(f"{key} {value}" for key, value in options.items())
            text += f" ({in_words})"
        docstring = inspect.getdoc(METRICS.constructor(name))
        if docstring:
            first_paragraph = docstring.split("\n\n")[0].replace("\n", " ")
            text += f": {first_paragraph}"
        texts.append(text)
    return "; ".join(texts)


def add_scores(
    scores: Scores,
    kind: str,
    image: np.ndarray | None,
    sharp: np.ndarray,
    metrics: Sequence[Metric],
    more_scores: Callable[[np.ndarray, np.ndarray], dict[str, float]] | None = None,
) -> None:
    """Score one frame of a clip, and append the values to `scores`, in place.

    Validation and tests both use this function, so that they agree.

    kind: what the image is, the key in `scores`, e.g. "restored".
    image, sharp: (H, W, 3) RGB in 0..255, as `utils.image.scored_values` returns. If the network
    gave NaN or Inf, the image is None and each score is NaN.
    more_scores: function (image, sharp) -> additional scores, e.g. {"lpips": 0.12}, or None.
    """
    if image is None:
        values = {metric.name: math.nan for metric in metrics}
    else:
        values = _values_of(image, sharp, metrics)
        if more_scores is not None:
            values |= more_scores(image, sharp)

    # Append each value to the list of its kind and metric. The first frame makes the lists.
    if kind not in scores:
        scores[kind] = {}
    values_of_frames = scores[kind]  # metric -> value of each frame so far
    for name, value in values.items():
        if name not in values_of_frames:
            values_of_frames[name] = []
        values_of_frames[name].append(value)


def _values_of(image: np.ndarray, sharp: np.ndarray, metrics: Sequence[Metric]) -> dict[str, float]:
    """Return the value of each metric, by name.

    image, sharp: (H, W, 3) RGB in 0..255.
    """
    values = {}
    # The brightness of both images, computed once, if a metric needs it.
    luma: tuple[np.ndarray, np.ndarray] | None = None
    for metric in metrics:
        if metric.on_luma:
            if luma is None:
                luma = (rgb_to_y(image), rgb_to_y(sharp))
            first, second = luma
        else:
            first = image
            second = sharp
        # Copies, because a metric of a user may compute in place
        # (test_a_metric_that_computes_in_place_changes_no_frame).
        score = metric.score(first.copy(), second.copy())
        values[metric.name] = _number(score, metric.name)
    return values


def _number(score: Any, name: str) -> float:
    """Return a score as a float. Raises OptionError if a metric of a user returns no number."""
    try:
        return float(score)
    except (TypeError, ValueError) as e:
        returned = f"an array {score.shape}" if isinstance(score, np.ndarray) else repr(score)
        raise OptionError(
            what=f'the metric "{name}" returns {returned}',
            where="metric.more",
            expected="one number for each frame",
            do="return a float, e.g. the mean",
        ) from e


def rgb_to_y(image: np.ndarray) -> np.ndarray:
    """Return the luma (brightness) of an image: (H, W) float64 in 16..235, not rounded.

    image: (H, W, 3) RGB in 0..255.

    Source: ITU-R BT.601, as MATLAB's rgb2ycbcr.
    """
    # The weights of R, G and B. The sum of the weights is 219 / 255, so white, 255, gives 219 + 16
    # = 235 (test_luma_agrees_with_scikit_image).
    weights = np.array([65.481, 128.553, 24.966]) / 255.0
    return image.astype(np.float64) @ weights + 16.0  # (H, W, 3) @ (3,) -> (H, W)


def format_score(name: str, value: float | str | None) -> str:
    """Return a score as text for a table. A dash stands for None. name: name of the metric."""
    if value is None:
        return "-"
    return f"{float(value):.{COLUMNS[name].digits}f}"


def _ssim_window(image: np.ndarray) -> np.ndarray:
    """Return the mean over the window of each pixel, without the pixels near the border.

    Near the border the window would reach beyond the image.
    """
    filtered = cv2.sepFilter2D(image, cv2.CV_64F, _SSIM_KERNEL, _SSIM_KERNEL)
    # The window of 11 x 11 pixels (_SSIM_KERNEL) reaches 5 pixels to each side, so (H, W) becomes
    # (H - 10, W - 10).
    return filtered[5:-5, 5:-5]


def _check_shapes(restored: np.ndarray, sharp: np.ndarray) -> None:
    """Raise DataError if two images have different shapes."""
    if restored.shape != sharp.shape:
        raise DataError(
            what=f"two images have different sizes: {restored.shape} and {sharp.shape}",
            where="",  # this function does not know the names of the images
            expected="two images of the same size",
            do="check --gt",
        )


# Import all files models/metric_*.py, each of which registers its metric. The import comes last in
# this file, because these files import `metric` of models/metrics.py.
import_parts("models", "metric_*")
