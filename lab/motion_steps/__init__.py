"""Training of the learned steps of weights/motion.pth: the parts of lab/train_motion.py.

What the steps are trained on.

    sets.py               the sets of clips, and what they are made from
    sample.py             a frame with everything that its equations are made of
    hidden_equations.py   equations without the motion, for the control
    made_samples.py       makes the clips and their samples, and chooses the samples of a part
    wrong_motion.py       motions that are wrong, from which the steps learn when not to trust them

The training.

    network.py            builds the network, reads and writes its weights
    loss.py               the loss of the steps, and their gain
    training.py           draws a sample for each update, and changes the weights
"""
