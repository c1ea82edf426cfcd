# Written by typings/generate.py.
from host.cli.cluster_manifest import *
