"""Read and write films, with FFmpeg's libraries.

reader.py       reads the frames of a film by number, each with its time
writer.py       writes frames as a film in H.264
container.py    opens a film, within limits
upright.py      makes a frame look as in a player: turned, with the right colours
"""
