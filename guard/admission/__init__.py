"""The engine: compiled policies, limits, permits, settlement."""
