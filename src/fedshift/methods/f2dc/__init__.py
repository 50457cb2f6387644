"""F2DC: decouple domain-robust and domain-related features, correct the latter."""
