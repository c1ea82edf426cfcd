# Written by typings/generate.py.
from host.cli.machine.kuberay_manifest import *
