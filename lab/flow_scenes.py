"""Scenes with exact optical flow: two neighbouring frames, blurry and sharp, and the spikes of their exposures."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from data.spike import simulate
from data.spike.represent import represent
from models.vrt.flow import flow_frames, middle_channels
from scripts.make_sample_data import GT_PLANE, PLANES, SIZE, Layer, blob, render, texture

STEPS = 22  # pictures of one exposure, each shown to the sensor for PLANES / STEPS planes
BINS = 8  # spike channels, as in the sample set
SPEED = 16.0  # largest speed of the camera, in pixels per frame; nearer layers move up to twice as fast
SHEET = SIZE + 128  # pixels of texture: the frame, and a margin for the motion
KINDS = ("blurry", "sharp", "spike", "both")


@dataclass(frozen=True)
class Pair:
    """Two neighbouring frames of a scene.

    pictures: kind -> (2, 1 or 3, SIZE, SIZE) display values in [0, 1]: the blurry and the sharp frames, and what
    netG.flow_input "spike" and "both" make of the blurry ones and their spikes. flow: (2, 2, SIZE, SIZE) pixels, from
    the first sharp frame to the second and back; as SpyNet's, channel 0 is horizontal.
    """

    pictures: dict[str, Tensor]
    flow: Tensor


def recorded(layers: list[Layer], rng: np.random.Generator) -> Pair:
    """The pair of a scene whose paths have 2 STEPS steps. rng: draws the firing rate and the noise of the spikes."""
    lights = [render(layers, step) for step in range(2 * STEPS)]
    exposures = [lights[:STEPS], lights[STEPS:]]
    middle = GT_PLANE * STEPS // PLANES
    blurry = displayed([np.mean(exposure, axis=0) for exposure in exposures])
    pictures = {"blurry": blurry, "sharp": displayed([exposure[middle] for exposure in exposures])}
    # Rates of the spikes in BINS bins of each exposure, on the RGB grid: (frames, BINS, SIZE, SIZE).
    rate = float(np.exp(rng.uniform(np.log(0.4), np.log(1.0))))
    sensor = simulate.IntegrateAndFire(
        SIZE // 2, SIZE // 2, rate=rate, rng=rng, shot_noise=0.03, dark_rate=0.001, threshold_mismatch=0.01
    )
    frames = []
    for exposure in exposures:
        grey = [simulate.bin_pixels(simulate.to_grey(light), 2) for light in exposure]
        stream = sensor.run(light for light in grey for _ in range(PLANES // STEPS))
        frames.append(represent("voxel", stream, GT_PLANE, rate=rate, num_bins=BINS))
    spike = torch.nn.functional.interpolate(torch.from_numpy(np.stack(frames)), scale_factor=2, mode="bilinear")
    for kind in ("spike", "both"):
        pictures[kind] = flow_frames(kind, blurry[None], spike[None], middle_channels(BINS))[0]
    flow = np.stack((flow_of(layers, middle, STEPS + middle), flow_of(layers, STEPS + middle, middle)))
    return Pair(pictures, torch.from_numpy(flow))


def make_pair(rng: np.random.Generator) -> Pair:
    """A random scene: a background and three objects, under a moving camera, at a random firing rate.

    The camera turns and moves, nearer layers shift more; objects also move.
    """
    time = (np.arange(2 * STEPS) + 0.5) / STEPS - 1.0  # in frames
    angle = rng.uniform(0, 2 * np.pi)
    velocity = SPEED * rng.uniform() * np.array([np.cos(angle), np.sin(angle)])
    shift = velocity * time[:, None] + rng.uniform(-1, 1, 2) * time[:, None] ** 2
    turn = rng.uniform(-0.04, 0.04) * time
    layers = []
    for depth in range(4):
        own = 0.0 if depth == 0 else rng.uniform(-4, 4, 2) * time[:, None]
        opacity = np.ones((SHEET, SHEET, 1), np.float32) if depth == 0 else blob(rng, SHEET)
        sheet = np.concatenate((simulate.to_linear(texture(rng, SHEET)) * opacity, opacity), axis=2)
        layers.append(Layer(sheet, np.column_stack((shift * (1.0 + 0.35 * depth) + own, turn))))
    return recorded(layers, rng)


def displayed(lights: list[np.ndarray]) -> Tensor:
    """Linear light (SIZE, SIZE, 3) of each frame -> display values of 8 bits, (frames, 3, SIZE, SIZE)."""
    values = np.stack([simulate.to_uint8(simulate.to_display(light)) for light in lights])
    return torch.from_numpy(values).permute(0, 3, 1, 2).float() / 255


def flow_of(layers: list[Layer], start: int, stop: int) -> np.ndarray:
    """(2, SIZE, SIZE) float32: where the content of each pixel at step `start` is at `stop`, minus the pixel."""
    y, x = np.mgrid[:SIZE, :SIZE]
    pixels = np.stack((x, y, np.ones_like(x)), axis=-1).astype(np.float64)
    flow = np.zeros((SIZE, SIZE, 2))
    for layer in layers:
        before, after = sheet_from_camera(layer, start), sheet_from_camera(layer, stop)
        moved = (pixels @ before.T - after[:, 2]) @ np.linalg.inv(after[:, :2]).T
        is_seen = layer.at(start)[..., 3:] > 0.5
        flow = np.where(is_seen, moved - pixels[..., :2], flow)
    return flow.transpose(2, 0, 1).astype(np.float32)


def sheet_from_camera(layer: Layer, step: int) -> np.ndarray:
    """(2, 3): sheet pixel = matrix @ (x, y, 1) of a camera pixel at `step`, measured on a sheet of coordinates."""
    y, x = np.mgrid[: layer.sheet.shape[0], : layer.sheet.shape[1]].astype(np.float32)
    seen = replace(layer, sheet=np.stack((x, y, x, y), axis=-1)).at(step)[..., :2].reshape(-1, 2)
    rows, columns = np.mgrid[:SIZE, :SIZE].reshape(2, -1)
    points = np.column_stack((columns, rows, np.ones_like(rows)))
    return np.linalg.lstsq(points, seen, rcond=None)[0].T
