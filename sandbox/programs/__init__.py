"""Makes the programs that cells run."""
