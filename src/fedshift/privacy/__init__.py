"""What a site may keep to itself: differential privacy and secure aggregation, as parts."""
