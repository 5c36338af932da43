"""Parts of scripts/spike_tool.py.

spike_geometry.py     height, width and storage of the planes of a file
spike_sizes.py        sizes that the length of a file allows
spike_ranking.py      which geometry a file most likely has
spike_info.py         prints what a file is
spike_rendering.py    grey images of planes
spike_views.py        pictures and videos of these images
spike_simulation.py   spikes of a clip
"""
