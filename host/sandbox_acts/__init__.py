"""What clients of sandboxes do: each act is a function of the arguments admitted."""
