"""Results of runs: values only."""
