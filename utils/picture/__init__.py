"""Read the headers of picture files, before the pixels are decoded.

read.py           finds the reader for a file
header.py         `Header`: size, depth and orientation of a picture
png.py            the header of a PNG
formats.py        the headers of JPEG, WebP, BMP and PNM
tiff.py           the tags of a TIFF, and of Exif data
orientation.py    turns a stored picture upright
"""
