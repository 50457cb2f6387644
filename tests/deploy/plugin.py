"""Lets the processes of a trial find the toy dataset."""

import fedshift.testing

__all__ = ["fedshift"]
