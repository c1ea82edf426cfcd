"""Commands of an operator: doctor, clean, images."""
