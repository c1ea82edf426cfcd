"""The code that runs inside a cell: standard library only, Python 3.8 or newer.

The host never imports these modules to run them; `toolcell.sandbox` packs
their source into one bundle and sends it to a clean interpreter (see
`toolcell.sandbox.backends.cell_bundle`). It imports `wire`, and from `kernel` the rules
of the system call filter, which it gives to Docker.
"""
