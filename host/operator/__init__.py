"""People, and their views and actions at a host that runs, without HTTP."""
