"""Find where and when two cameras saw the same scene, from blurry frames and their spikes.

fit.py explains the idea, and has the function that others call. Each module imports only modules
below it:

    fit.py            from the pixels of the files to binned pixels, and back
    rounds.py         the order of the rounds, and which of three estimates is taken; how far the
                      start may be shifted (size of the first details, `after_all_rounds`)
    all_pixels.py     a round on all pixels: one step of matrix and times
    parts.py          a round on parts of the plane: one step of the matrix, and its error
    times.py          what a clip tells about the times, and their errors
    equations.py      the sums of a round on all pixels
    joint_change.py   one change of the matrix from the shifts of the parts
    derivatives.py    how the residuals change with each unknown
    explanation.py    the coefficients of the features, the residuals and their weights
    details.py        what spikes and frame show at the present estimate
    estimate.py       the present matrix and times; limits of a step, of the length and of the roll
                      (the limit of the offset is MOST_OFFSET in fit.py)
    matrix.py         the matrix and its small changes
    view.py           a frame and its spikes, prepared
    result.py         the result: which values are sure, and which are applied
"""
