"""What toolcell is measured against."""
