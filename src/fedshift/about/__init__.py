"""What can be said of a method without training it: its card, and what it stacks with.

``fedshift show METHOD``, the pages of the documentation and tests read it. Everything follows from
declarations, from docstrings and from building nets; nothing here may train a model.
"""
