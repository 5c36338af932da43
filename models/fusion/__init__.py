"""Operators that bring spikes and RGB together, by the option netG.fusion.

operators.py        the operators none, concat and gated. It imports the other operators
base.py             `Fusion`, with the hooks that the network calls, and the registry of operators
exposure.py         the operator exposure
fusion_motion.py    the operator motion

motion_net.py       a network that finds the motion within an exposure, for the operator motion
motion_windows.py   the windows of time that motion_net.py sees, and curves over time
least_squares.py    the motion that is left between the windows
"""
