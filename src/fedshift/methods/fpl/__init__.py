"""FPL: contrast with clusters of class means of all clients (Huang et al., CVPR 2023).

Each round a client sends the mean feature of each of its classes. The server clusters the means of
one class over all clients by FINCH, so that every group of similar domains has one prototype of the
class, and large domains do not dominate. At the client, the contrast pulls a feature to all
prototypes of its class and away from those of other classes; the consistency term pulls it to the
mean of its class's prototypes.
"""
