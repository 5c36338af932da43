"""The equations of both cameras for the sharp frame of one exposure, and their solution.

equations.py              sets the equations up, solves them, and shows them to a network

The equations B x = b of the blurry frame and S l = y of the spikes:

rgb_equations.py          b, and its expected error
spike_equations.py        y: one equation for each interval between two spikes
intervals.py              finds these intervals
spike_errors.py           the expected error of y
groups.py                 the moments into which an exposure is divided, and the motion at each
cameras.py                what both cameras see of a frame: B and S, and their adjoints
chunk.py                  the samples of a picture at some moments, for B and S
sampling.py               the four pixels of a sample; adjoint_of_samples.py maps back to them
spike_pixels.py           what the spike pixels see of a picture
area_means.py             the mean over a spike pixel at each place of the frame
lens.py                   the blur by the lens of the spike camera
sparse.py                 sparse matrices
values.py                 display values, light and luma

The solution, and what a network sees:

system.py                 all equations: the residuals of a frame, and the weights of the equations
solution.py               solves the equations
linearised.py             makes them linear at a frame
conjugate_gradients.py    the steps towards the solution
guard.py                  blends the solution with the first estimate, which gets more weight where
                          the solution fits worse
network_channels.py       the channels that learned steps see
"""
