"""The files of clips: where they are, whether they are complete, and how they are read.

List the files of a data root. A `Source` names its folders.

    source.py           the folders of a root, and a `Problem` of the data
    meta_file.py        the list of its clips; joined_errors.py makes one error of several
    threads.py          looks up, reads or makes many files at once
    data_root.py        all clips of a root; clip_folder.py lists one folder
    lmdb_root.py        the same for an LMDB; lmdb_database.py opens it, lmdb_sizes.py sizes values
    listed_files.py     the result: names, sizes and times of change of files

Check the data before a run.

    preflight.py        the check of all roots
    root_check.py       one root, file by file; manifest.py checks it by names and sizes
    look.py             opens each file once
    clip_check.py       one clip: frame_files.py, frame_names.py, spike_planes.py, clip_problems.py
    spike_check.py      compares spikes with frames
    kept.py             stores the result for later starts
    stored_arrays.py    reads the stored file; column_check.py checks its values
    unchanged_data.py   whether the data are still as stored

Keep the clips of large data sets in little memory.

    columns.py          the arrays; table_builder.py fills them, table.py reads clips from them
    clip_lists.py       properties of all clips; ranges.py finds numbers in ranges

Read frames and spikes.

    io_backend.py       the ways: disk_files.py with shared_images.py, or clip_cache.py
    cache_builder.py    builds a clip cache; cache_format.py has its form
    file_content.py     bytes; pictures.py decodes them, picture_losses.py says what is lost

Take the clips of a user, or hand clips to a test.

    clip_reader.py      finds the clips of a user; user_clip.py matches the files of one
    user_folders.py     pictures and films in a folder; user_frames.py reads them
    user_spike_files.py spike files of a user; film_times.py finds when frames were taken
    readers.py          the clips of a test set; content.py makes a digest of them
    sample_check.py     refuses what a user's data set returns if it is no sample or frame
"""
