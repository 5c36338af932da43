"""Clips, samples and datasets, and methods that restore frames without a network.

Choose and describe datasets.

    select_dataset.py      datasets by name
    dataset_video.py       the datasets of clips, with and without spikes
    clip_options.py        their option keys
    clip_sources.py        finds and checks their data roots
    root_spikes.py         how the spikes of a root are read
    clip.py                `Clip`, the files of one clip

Read samples.

    sample_order.py        which samples a rank reads, and in which order
    loader.py              batches, and workers that read
    sample_numbers.py      which frames of which clip a numbered sample has
    clip_dataset.py        chooses what is read: crops for training, clips for tests
    augment.py             draws crop, flips, and a simulated spike camera
    clip_reading.py        makes tensors of what was chosen

Check that data, spikes and network fit together.

    network_fit.py         refuses clips that do not fit the network
    alignment_check.py     checks a few samples before a training
    alignment.py           compares the spikes of a sample with its frames
    alignment_pictures.py  the pictures that are compared; edge_shift.py measures their shift
    disagreement.py        says in words why they differ

Restore clips with main_test_vrt.py.

    own_clips.py           opens a user's own clips; scored_set.py reads datasets.test
    chosen_method.py       makes what --method asks for
    reconstruct.py         formulas that need no weights
    formula_spikes.py      how spikes are read for a formula
    spikes_alone.py        a clip of spikes without frames

Folders: spike/ (spike files and representations), clips/ (files of clips), cameras/ (which spikes
belong to which pixel and frame), motion/ (sharp frames along a motion), making/ (makes clips).
"""
