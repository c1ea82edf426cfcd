# Written by typings/generate.py.
from host import *
from host.config.host_config import HostConfig as HostConfig
from host.runtime.host import Host as Host
