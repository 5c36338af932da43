"""Clips, samples and datasets, and methods that restore frames without a network.

Modules that choose and describe datasets:

    select_dataset.py      chooses a dataset by its name
    dataset_video.py       the datasets of clips, with and without spikes
    clip_options.py        the option keys of these datasets
    clip_sources.py        finds and checks the data roots (sets of folders) of a dataset
    root_spikes.py         says how the spikes of a root are read
    clip.py                `Clip`, the files of one clip

Modules that read samples:

    sample_order.py        chooses which samples a rank reads, and in which order
    loader.py              makes batches, in workers that read the samples
    sample_numbers.py      says which frames of which clip a numbered sample has
    clip_dataset.py        chooses what is read: crops for training, clips for tests
    augment.py             draws crop, flips, and a simulated spike camera
    clip_reading.py        makes tensors of what was chosen

Modules that check whether data, spikes and network fit together:

    network_fit.py         refuses clips that do not fit the network
    alignment_check.py     checks a few samples before a training
    alignment.py           compares the spikes of a sample with its frames
    alignment_pictures.py  reads the pictures that are compared
    edge_shift.py          measures how far these pictures are shifted
    disagreement.py        says in words why spikes and frames do not agree

Modules that open and restore clips for main_test_vrt.py:

    own_clips.py           opens a user's own clips, by clips/clip_reader.py
    scored_set.py          reads the clips of datasets.test
    chosen_method.py       makes what --method asks for
    reconstruct.py         formulas that restore frames without weights
    formula_spikes.py      says how spikes are read for a formula
    spikes_alone.py        opens a clip of spikes without frames

Folders: spike/ (spike files and representations), clips/ (files of clips), cameras/ (which spikes
belong to which pixel and frame), motion/ (sharp frames along a motion), making/ (makes clips).
"""
