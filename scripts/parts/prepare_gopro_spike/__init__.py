"""Parts of scripts/prepare_gopro_spike.py. data/making/ makes the clips.

clip_splits.py        which clips become test clips
clip_checks.py        checks all clips before the first clip is made
made_info.py          dataset.json
parallel_calls.py     calls a function in parallel processes
"""
