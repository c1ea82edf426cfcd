# Written by typings/generate.py.
from host.cli.machine.cluster_manifest import *
