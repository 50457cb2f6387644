"""Analyses of finished runs: a table, a figure and the answer in a sentence.

``fedshift analyse``, recipes and users call :func:`analyse` with a kind and the runs; every kind is
a function in ``analyse.kinds``. They are not the ``analyses`` of a scenario (``core.analysis``):
those are measured while a run goes on, and some kinds here draw what they recorded.
"""

from fedshift.analyse.finding import Finding as Finding
from fedshift.analyse.registry import ANALYSES as ANALYSES
from fedshift.analyse.registry import analyse as analyse
from fedshift.analyse.registry import options_of as options_of
