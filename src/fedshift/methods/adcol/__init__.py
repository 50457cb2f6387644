"""ADCOL: features that a server cannot tell the origin of (Li et al., ICML 2023)."""
