"""Where attention over frames may be added: the forms of lab/vrt_curve.py, and their training.

What all forms share.

    form.py                   what a form is: data, two networks, a loss and tests
    training.py               trains one network for a CPU time, and can be stopped

The forms.

    motion.py                 in the network that finds the motion
    attention_motion_net.py   its network with attention
    prior.py                  between the learned steps
    prior_net.py              its networks
    clip_equations.py         the equations of all frames of a clip
    behind.py                 after the operator, on the frames that it has restored

What "prior" and "behind" share.

    clips.py                  the clips of their training and of their tests, and the score
    frame_convs.py            convs that see a single frame, for the controls
"""
