"""The spike camera: files, representations and simulation.

Needs numpy only; imports nothing of this project. Begin with one of

    formats.py     read and write spike files
    represent.py   turn planes of spikes into channels of a network
    simulate.py    make spikes from light; threshold.py changes the threshold of spikes
    light.py       compute light from spikes
"""
