"""Makes and kills cells; one file a backend."""
