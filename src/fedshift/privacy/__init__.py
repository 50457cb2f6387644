"""Differential privacy and secure aggregation, as parts that are added to a method.

``methods.privacy`` registers them, and the round calls their hooks (``negotiate``, ``encode``,
``reply``, ``decode``). A part must never let anything leave a site that its guarantee does not
cover: it raises an error instead.
"""
