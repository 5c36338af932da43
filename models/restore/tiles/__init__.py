"""Restore a clip in tiles, and blend them.

plan.py           where tiles begin, and how large they are
restorer.py       restores clips, with smaller tiles if memory is full
stream.py         tile by tile in time
space.py          tile by tile in space
padding.py        a tile of any size
blending.py       weights of overlapping tiles
gaps.py           new frames between frames
frame_cache.py    keeps frames that were read last
frame_store.py    keeps restored frames in a file
"""
