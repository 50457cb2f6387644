"""From a method's name to results: one run, many runs side by side, and their progress.

This is what users and the command line call; it never decides what a round computes.
"""
