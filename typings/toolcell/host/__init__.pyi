# Type checkers only: toolcell.host is the folder ./host.
from host import *
from host.config import HostConfig as HostConfig
from host.host import Host as Host
