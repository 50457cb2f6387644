"""Fed-CO2: a shared and a private model teach each other (Cai et al., NeurIPS 2023)."""
