"""The times at which a scene is drawn, and its size.

A plane is one binary picture of the spike camera. tau is the time after the sharp instant, in
halves of an exposure (44 planes): tau = -1 is about the start of the exposure, tau = 1 its end.

What must stay: an exposure has 88 planes, because `MotionNet` divides it into eleven windows of
USUAL_PLANES planes each. With another value of any number below, the same seed gives other scenes.
"""

import numpy as np

from data.motion.network_inputs import USUAL_PLANES
from models.fusion.motion_windows import EDGES

PLANES = 88  # planes of an exposure
HALF = 44  # planes of half an exposure
SHARP = 44.5  # the sharp instant, in planes from the start of the exposure: the middle of plane 44
BEFORE = 40  # planes of a scene before the exposure; the same number comes after the exposure
STEP = 2  # two planes in a row see the same light, which halves the time for drawing a scene
# The instants at which a scene is drawn, (84,): the middles of pairs of planes, in planes after the
# sharp instant. E.g. the first pair, planes -40 and -39, has its middle at -39, and -39 - 44.5 is
# -83.5.
INSTANTS = np.arange(-BEFORE, PLANES + BEFORE, STEP) + STEP / 2 - SHARP
# The middles of the 15 windows of `MotionNet`, (15,), in planes after the sharp instant. EDGES are
# in elevenths of an exposure from its middle, and an eleventh has USUAL_PLANES planes. E.g. the
# middle of the middle window is at 0 elevenths, 44 planes after the start of the exposure. The
# sharp instant is 44.5 planes after the start. So MIDDLES has 44 - 44.5 = -0.5 for this window.
_MIDDLES_OF_EDGES = (np.array(EDGES[:-1]) + np.array(EDGES[1:])) / 2
MIDDLES = (_MIDDLES_OF_EDGES * USUAL_PLANES + HALF) - SHARP
SIDE = 64  # height and width of a scene, in spike pixels
# A layer is larger than the scene by this number of pixels on each side. So a part of its picture
# is outside of the scene, and this part can move into the scene.
MARGIN = 32
