"""Any method of fedshift as a Flower app."""
