"""The file systems of a cell of namespaces that programs can write to."""

from __future__ import annotations

import contextlib
import errno

from ..kernel import linux
from ..wire import terminals
from ..wire.contract import SHARED_FOLDERS

_MAX_FILES_PER_MB = 256
_FLAGS = linux.MS_NOSUID | linux.MS_NODEV


def mount(workdir: str, disk_mib: int, uid: int) -> None:
    """Mount empty ones, each of `disk_mib`, and terminals of the cell's own.

    Raises:
        OSError: The kernel refused one of them.
    """
    # A kernel may have no terminals: then the cell has none.
    with contextlib.suppress(OSError):
        flags = linux.MS_NOSUID | linux.MS_NOEXEC
        _mount("devpts", terminals.FOLDER, flags, terminals.OPTIONS, terminals.MOST)
    size, files = f"size={disk_mib}m", f"nr_inodes={disk_mib * _MAX_FILES_PER_MB}"
    own = f"{size},mode=0700,uid={uid},gid={uid}"
    _mount("tmpfs", workdir, _FLAGS, own, files)
    for path in SHARED_FOLDERS:
        _mount("tmpfs", path, _FLAGS, f"{size},mode=1777", files)


def _mount(kind: str, folder: str, flags: int, options: str, most: str) -> None:
    """Mount with a bound on the number of what it holds, where the kernel has one."""
    try:
        linux.mount(kind, folder, kind, flags, f"{options},{most}")
    except OSError as error:
        # gVisor has none, and keeps what there is in memory of its own.
        if error.errno != errno.EINVAL:
            raise
        linux.mount(kind, folder, kind, flags, options)


def unmount(workdir: str) -> None:
    """Give them up with all that is in them.

    Raises:
        OSError: Something still uses one of them.
    """
    for path in (*SHARED_FOLDERS, workdir):
        linux.umount(path, 0)
    try:
        linux.umount(terminals.FOLDER, 0)
    except OSError as error:
        # A cell without terminals has no such mount.
        if error.errno != errno.EINVAL:
            raise
