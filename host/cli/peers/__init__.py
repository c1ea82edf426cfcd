"""`toolcell bench --peers`: other sandboxes beside toolcell on this machine."""
