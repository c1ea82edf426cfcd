"""Files of the work dir, for the host: bounded, step by step, as the program's user."""
