"""How samples are dealt out: train/val/test splits, partitions over clients, label skew.

The engine calls it when it builds a federation from a scenario. Each result depends on the plan,
the domains and the seed only, never on the machine; stored arrays are indexed, never copied.
"""
