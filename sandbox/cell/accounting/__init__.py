"""The accounts of a cell: CPU time and memory of its processes, by the supervisor."""
