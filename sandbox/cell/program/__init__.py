"""Process 3 of 3: UNTRUSTED, runs as the program's user."""
