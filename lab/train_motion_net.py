#!/usr/bin/env python3
"""Train the network that finds the motion within an exposure (models/fusion/motion_net.py).

    python lab/train_motion_net.py --videos VIDEOS --out FILE [--minutes 45] [--seed 0]

The network learns from drawn scenes (`Scene`), because their motion is known exactly. A scene has a
background, and up to five things in front of the background. Each thing has its own motion. Each
scene is recorded twice, by two simulated spike cameras in different light. A step of the training
makes its data in this order, with the modules textures, scenes, samples, batches and loss of
lab/motion_net/:

    all_textures -> random_scene -> record_sample (spikes, blurry frame) -> Sample
    8 samples -> batch_of -> turn_at_random -> MotionNet -> loss_of

The program uses one thread of a CPU. It writes the weights to FILE every 30 seconds and at the end,
and prints the mean error of the motion. lab/train_motion.py reads FILE, and trains the other parts
of weights/motion.pth with this network.

What must stay: the order of the random draws. All random numbers come from one generator. So a new
draw changes all later scenes, and an earlier training cannot be repeated. No test notices this.
Free to change, for the next training: the values in lab/motion_net/training.py and
lab/motion_net/loss.py. lab/vrt_curve.py uses functions of lab/motion_net/, too.

No test runs `train`, and no test notices if a true shift has the wrong sign. So train for two
minutes after a change. The printed error must become clearly smaller than the printed length, e.g.
0.7 of 1.2 pixels. If y had the wrong sign, the error would stay as large as the length.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.motion_net.textures import all_textures
from lab.motion_net.training import train


def main(argv: Sequence[str]) -> int:
    """Draw the textures, train the network and write its weights. Returns the exit code 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--videos", type=Path, required=True, help="folder of the videos of lab/quality.py")
    add("--out", type=Path, required=True, help="file of the weights")
    add("--minutes", type=float, default=45, help="time of the training, default %(default)s")
    add("--seed", type=int, default=0, help="seed of weights and scenes, default %(default)s")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    textures = all_textures(args.videos)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    train(textures, args.out, 60 * args.minutes, args.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
