"""Readers of images, arrays, vectors and hub datasets: one domain at a time.

``library.prepare`` calls them, through ``discover``, which finds the files; a deployed site calls
the image reader directly. A reader never drops a row silently: it reports each one that it leaves
out, with the reason.
"""
