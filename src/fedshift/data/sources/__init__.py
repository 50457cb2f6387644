"""Readers of images, arrays, vectors and hub datasets: one domain at a time."""
