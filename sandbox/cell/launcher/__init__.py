"""Process 1 of 3: makes namespaces; never reads untrusted bytes."""
