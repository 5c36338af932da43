"""The spike camera: files, representations and simulation.

The modules of this folder need only numpy, and import nothing from other folders of this project.

Modules that read and write spike files (begin with formats.py):

    formats.py            opens, reads and writes files: one format for each suffix
    spike_file.py         reads planes of an open file
    arrays.py             reads arrays of NumPy
    packed_file.py        finds the planes in a packed file
    packing.py            packs spikes into bits, and unpacks them
    sps100.py             reads files of the sensor SPS100
    geometry.py           size of a plane, and its form in files
    headers.py            refuses files that are not spikes
    known_geometries.py   sizes of the planes of published data, for messages
    errors.py             the error of a spike file

Modules that turn planes into channels of a network (begin with represent.py):

    represent.py          the way from planes to channels
    registry.py           registers representations
    averages.py           firing rates in windows (voxel, TFP)
    ratios.py             light of short windows, divided by the light of the exposure
    interval_rate.py      time between two spikes (TFI)
    synapses.py           a model of synapses (TFSTP)
    plane_windows.py      the planes themselves

Modules that compute spikes from light, and light from spikes:

    simulate.py           makes spikes from light
    threshold.py          changes the threshold of recorded spikes
    light.py              computes light from spikes
    light_fit.py          finds whether a sensor counted linear light or display values
    pictures.py           turns pictures into light and back

A module for names that have moved from one module to another since version 0.9.0:

    moved.py              imports a moved name from its new module, with a warning
"""
