"""The views and actions of people and clients at a host that runs, without HTTP."""
