"""Time and memory of the network and of the data: the measurements of lab/benchmark.py.

network.py   net and train: a restoration or a training step
samples.py   data: a training sample of GoPro size, for each way to read it
starts.py    start: the first and the second start of a training on many clips
"""
