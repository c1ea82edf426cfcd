"""The baselines that toolcell is measured against."""
