"""How threads run: tasks, steps, operations (internal to toolcell.flow)."""
