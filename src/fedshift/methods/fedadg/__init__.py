"""FedADG: features moved to a generated distribution, class by class (Zhang et al., 2021).

Three players move on each batch. The discriminator D of a client learns to tell generated features
(1) from its own (0); body and head learn their task and to be taken for generated ones; the
generator G learns to be taken for features. All clients share G, so their features meet there.
"""
