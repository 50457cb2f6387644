"""CCST: images in the styles of other clients, by AdaIN (Chen et al., WACV 2023)."""
