"""The running of threads: tasks, steps, operations (internal to toolcell.flow)."""
