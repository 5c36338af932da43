"""Separate the pixels that move from the pixels that stand still.

shares.py            how much of the improved frame each pixel gets: 0 if it stands still
other_pictures.py    leaves out planes around the exposure that show another picture
evidence.py          the evidence of a motion in the spikes, for the two modules above
common_change.py     takes out what many pixels have in common, e.g. the light of a lamp
neighbours.py        multiplies the changes of neighbours, which are alike if an edge moves
"""
