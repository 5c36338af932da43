"""The spike camera: files, representations and simulation.

Needs numpy only; imports nothing of this project.

Read and write spike files. Begin with formats.py.

    formats.py            one format for each suffix
    spike_file.py         planes of an open file; arrays.py reads files of NumPy
    packed_file.py        the planes in a packed file; packing.py unpacks bits
    sps100.py             files of the sensor SPS100
    geometry.py           size of a plane, and its form in files
    headers.py            refuses files that are no spikes
    known_geometries.py   planes of published data, for messages
    errors.py             the error of a spike file

Turn planes into channels of a network. Begin with represent.py.

    represent.py          the way from planes to channels
    registry.py           registers representations
    averages.py           firing rates in windows (voxel, TFP)
    ratios.py             light of short windows over light of the exposure
    interval_rate.py      time between two spikes (TFI)
    synapses.py           a model of synapses (TFSTP)
    plane_windows.py      the planes themselves

Compute spikes from light, and light from spikes.

    simulate.py           makes spikes from light
    threshold.py          changes the threshold of recorded spikes
    light.py              computes light from spikes
    light_fit.py          whether a sensor counted linear light or display values
    pictures.py           turns pictures into light and back

Find names that stood elsewhere in version 0.9.0.

    moved.py              old place -> new place, with a warning
"""
