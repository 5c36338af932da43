"""Parts of scripts/make_sample_data.py.

sample_layers.py      the scene of a clip: textured layers that move in front of one another
"""
