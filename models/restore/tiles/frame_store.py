"""Keep restored frames in a file, so that the memory does not hold all frames of a clip.

stream.py appends restored frames in the order of time, and reads them in any order. Only the option
flip_seq needs the file, because it restores a clip also in reversed time, and the two results of a
frame come far apart.

What must stay: a frame comes back bit for bit.

Tests: tests/parts/models/test_tiling.py
"""

from typing import IO

import torch
from torch import Tensor


class FrameStore:
    """Frames of one shape and dtype in a file, to be read in any order."""

    def __init__(self, file: IO[bytes]) -> None:
        """file: an empty file, open for writing and reading."""
        self.file = file
        # Shape, dtype and size of every frame. `append` sets them.
        self.shape = torch.Size()
        self.dtype = torch.float32
        self.bytes_of_frame = 0

    def append(self, frame: Tensor) -> None:
        """Write a frame (a CPU tensor) at the end of the file. Write all frames before you read."""
        self.shape = frame.shape
        self.dtype = frame.dtype
        self.bytes_of_frame = frame.nbytes
        self.file.write(frame.numpy().tobytes())

    def read(self, position: int) -> Tensor:
        """Return the frame that was appended as number `position`, from 0."""
        self.file.seek(position * self.bytes_of_frame)
        # torch takes only a buffer that it may write to, so copy the bytes into a bytearray.
        content = bytearray(self.file.read(self.bytes_of_frame))
        return torch.frombuffer(content, dtype=self.dtype).reshape(self.shape)
