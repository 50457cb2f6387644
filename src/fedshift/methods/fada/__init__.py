"""FADA: sources aligned with a target, and weighed by how it clusters (Peng et al., ICLR 2020).

Three ideas: features are split into a domain-invariant half, which is classified, and a specific
one; an adversary aligns source and target features (FedKA's part); and the server weighs each
source by how much its model improves the clusters of the target's features.
"""
