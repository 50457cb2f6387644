"""Codecs: fewer bytes per update, to be added to any method whose updates are shared entries.

Each codec sends the change of the model, d = w - theta, in a smaller form, and the server adds it
to the theta that it has sent. Small numbers lose less than large ones when they are rounded, and
theta itself need not travel back.
"""
