"""KD3A: the clients' knowledge distilled on an unlabelled target (Feng et al., ICML 2021).

After each round the participants' models vote on target inputs at the server (knowledge vote), the
server trains one more model on the result, and all models are averaged, those whose votes improve
the consensus with more weight (consensus focus). Only models travel.
"""
