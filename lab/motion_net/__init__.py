"""Training of the network that finds the motion: the parts of lab/train_motion_net.py.

A scene is drawn, recorded by simulated cameras, and becomes a sample of a batch.

    instants.py   the times at which a scene is drawn, and its size
    textures.py   grey pictures from which the surfaces of things are cut
    layers.py     a flat picture that moves along an exact curve
    scenes.py     layers in front of each other, and the exact motion of each pixel
    sensor.py     the spike camera, which makes spikes of light
    samples.py    what the network sees of a scene, through random cameras
    batches.py    samples as tensors, mirrored at random

The training.

    loss.py       the loss of the network
    training.py   the steps: learning rate, pool of samples, average of the weights
"""
