"""The spike camera: files, representations and simulation.

Needs numpy only; imports nothing of this project.
"""
