"""Resource usage of a cell by the kernel's counters, and limits enforced by polling."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ..kernel import process_tree
from ..kernel.cgroup_files import oom_kills_in
from .cpu_samples import CpuSamples
from .memory import KernelMemory, ProcessMemory, proportional_bytes, resident_bytes
from .memory_watch import MemoryWatch, gave_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from typing import Any, Callable

    from .memory import Memory


_TICKS = os.sysconf("SC_CLK_TCK")

# Inside a container the engine shows the cell's own cgroup here.
_CONTAINER_FILES = {
    "oom": ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events"),
    "cpu": ("/sys/fs/cgroup/cpuacct/cpuacct.usage", "/sys/fs/cgroup/cpu.stat"),
}


class ResourceAccounting:
    """Counts CPU time, memory and OOM kills of one run at a time.

    The counters are those of the cell's cgroup where it has one, else those of the
    processes in /proc. Limits on `cpu_seconds` and on memory without a cgroup hold only
    as often as `exceeded` is called, so callers poll it every `next_check_in` seconds.

    Args:
        cgroup: Open descriptors of the cgroup's `oom` and `cpu` files; None in a
            container, where they are looked for.
        adopts: True if every process of the cell is below this one.
    """

    INTERVAL_SECONDS = 0.05

    def __init__(self, cgroup: dict[str, int] | None, adopts: bool) -> None:
        self._files = self._container_files() if cgroup is None else cgroup
        self._children = self._children_file()
        self._adopts = adopts
        self._memory: MemoryWatch | None = None
        self.commands: Callable[[], int] = int
        """Returns the process, one of ours, below which commands run; 0 if none."""
        self.ours: Callable[[], set[int]] = set
        """Returns the processes below this one that run no program."""
        self.notifier = 0
        """The process that works for the cell's programs and is not below this one."""
        self._cpu_before = self._own_before = 0.0
        self._oom_before = self._oom_at_rest = 0
        self._charged = 0.0
        self._samples: CpuSamples | None = None

    def close(self) -> None:
        """Close the file that lists children."""
        if self._children is not None:
            os.close(self._children)

    @staticmethod
    def _children_file() -> int | None:
        try:
            return os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY)
        except OSError:
            return None

    @staticmethod
    def _container_files() -> dict[str, int]:
        files = {}
        for name, paths in _CONTAINER_FILES.items():
            for path in paths:
                try:
                    files[name] = os.open(path, os.O_RDONLY)
                    break
                except OSError:
                    continue
        return files

    def watch_memory(
        self, setting: dict[str, Any] | None, uid: int | None = None
    ) -> None:
        """Watch the memory of the cell, as no cgroup holds it.

        Args:
            setting: The limit in `bytes`, the `folders` that are file systems in
                memory of the cell's own, and `own_kernel`: True if no other cell shares
                the kernel. None: a cgroup holds memory.
            uid: As for `ProcessMemory`.
        """
        if setting is None or not os.path.isdir("/proc/self"):
            return
        memory: Memory = KernelMemory()
        if not setting["own_kernel"]:
            memory = ProcessMemory(self._programs, setting["folders"], uid)
        self._memory = MemoryWatch(memory, setting["bytes"])
        self._files["oom"] = self._memory.kills_file

    def begin(self, request: dict[str, Any]) -> None:
        """Remember the counters at the start of a run.

        Args:
            request: The request to run; its limits decide what is counted.
        """
        if self._memory is not None:
            self._memory.begin(request["watch_memory_bytes"])
        self._oom_before = self.oom_total()
        alone = self._counts_alone(request)
        if alone:
            self._own_before = time.process_time()
        counted = alone or request["cpu_seconds"]
        self._cpu_before = self._read_cpu_seconds() if counted else 0.0
        self._charged, self._samples = 0.0, None
        if request["cpu_seconds"] and self._adopts and "cpu" not in self._files:
            cpus = len(os.sched_getaffinity(0))
            self._samples = CpuSamples(time.monotonic(), cpus)

    @property
    def oom_descriptor(self) -> int:
        """The open file that counts kills for memory; -1 if there is none."""
        return self._files.get("oom", -1)

    def rest(self) -> None:
        """Watch what a run has left, until the next one begins."""
        self._oom_at_rest = self.oom_total()
        if self._memory is not None:
            self._memory.rest()

    def oom_kills(self, *, begun: bool) -> int:
        """Return how many processes were killed for memory since the run began.

        Args:
            begun: False if its program never began. It kept state then, and had been
                killed before, but not ended: what was killed since the last run counts.
        """
        return self.oom_total() - (self._oom_before if begun else self._oom_at_rest)

    def oom_total(self) -> int:
        """Return how many processes of the cell were ever killed for memory."""
        return oom_kills_in(self._read("oom"))

    def take_kill(self) -> None:
        """Leave one kill for memory out of this run's count: it ended a command."""
        total = self.oom_total()
        self._oom_before = min(self._oom_before + 1, total)
        self._oom_at_rest = min(self._oom_at_rest + 1, total)

    def _counts_alone(self, request: dict[str, Any]) -> bool:
        """Return True if the cgroup's CPU counter counts nothing but this run."""
        return bool(request["final"]) and "cpu" in self._files

    def cpu_seconds(self, request: dict[str, Any]) -> float:
        """Return the CPU seconds of a run by a counter that misses no process; else 0.

        wait4 misses processes that their parent does not wait for.
        """
        if not self._counts_alone(request):
            return self._charged
        own = time.process_time() - self._own_before
        return self._read_cpu_seconds() - self._cpu_before - own

    def children(self) -> list[int]:
        """Return the pids of this process's children, including zombies."""
        if self._children is None:
            return process_tree.children(os.getpid())
        return [int(pid) for pid in os.pread(self._children, 4096, 0).split()]

    def must_watch(self, request: dict[str, Any]) -> bool:
        """Return True if this run has a limit that is enforced by polling."""
        return bool(request["cpu_seconds"] or self._memory)

    def exceeded(self, request: dict[str, Any]) -> str | None:
        """Return the status of the polled limit that is reached; None if none is.

        Where a command has most of the memory it is ended, and not the run.
        """
        greatest, commands = self._takes_too_much(), self.commands()
        if greatest and not (commands and process_tree.is_below(greatest, commands)):
            return "out_of_memory"
        if greatest:
            self._kill(greatest)
            # It is the end of a command, and no reason for one of this run.
            self._oom_before += 1
        seconds = request["cpu_seconds"]
        if seconds and self._cpu_seconds_charged() >= seconds:
            return "cpu_limit"
        return None

    def gave_up(self, status: int, usage: resource.struct_rusage) -> bool:
        """Return True if a process ended itself above the watched limit of memory."""
        limit = self._memory.limit if self._memory is not None else 0
        return gave_up(status, usage.ru_maxrss * 1024, limit)

    @property
    def watches_memory(self) -> bool:
        """True if programs that run between runs must be watched, too."""
        return self._memory is not None

    def keep_memory(self) -> None:
        """Between runs: end the greatest process if there is too much memory in use."""
        self._kill(self._takes_too_much())

    def _takes_too_much(self) -> int:
        """Return the greatest process where too much memory is in use; else 0."""
        memory = self._memory
        if memory is None or not memory.exceeded(time.monotonic()):
            return 0
        greatest = max(self._programs(), key=resident_bytes, default="0")
        # What had most of it may have ended after it was counted.
        return int(greatest) if memory.is_passed() else 0

    def _programs(self) -> list[str]:
        ours = self.ours()
        return [pid for pid in self._processes() if int(pid) not in ours]

    def _kill(self, pid: int) -> None:
        if pid and self._memory is not None:
            self._memory.count_kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def next_check_in(self) -> float:
        """Return the seconds until `exceeded` should be called again."""
        seconds = self.memory_check_in()
        if self._samples is None:
            return seconds
        return min(self._samples.due(time.monotonic()), seconds)

    def memory_check_in(self) -> float:
        """Return the seconds until `keep_memory` should be called again."""
        if self._memory is None:
            return self.INTERVAL_SECONDS
        return self._memory.due_in(time.monotonic())

    def _cpu_seconds_charged(self) -> float:
        counted = self._read_cpu_seconds() - self._cpu_before
        if self._samples is None:
            return counted
        now, processes = time.monotonic(), self._processes()
        self._charged = self._samples.charge(now, counted, processes)
        return self._charged

    def _read_cpu_seconds(self) -> float:
        if "cpu" not in self._files:
            return self._cpu_seconds_of_all()
        text = self._read("cpu")
        if text.startswith("usage_usec"):
            return int(text.split()[1]) / 1e6
        return int(text or 0) / 1e9

    def _read(self, name: str) -> str:
        fd = self._files.get(name)
        return "" if fd is None else os.pread(fd, 4096, 0).decode()

    def _processes(self) -> list[str]:
        return [str(pid) for pid in process_tree.others()]

    def totals(self) -> dict[str, Any]:
        """Return the CPU time of the cell so far, and the memory of its processes."""
        memory = 0
        for pid in self._processes():
            share = proportional_bytes(pid)
            memory += resident_bytes(pid) if share is None else share
        return {"cpu_ms": self._read_cpu_seconds() * 1000, "memory_bytes": memory}

    def _cpu_seconds_of_all(self) -> float:
        # Processes that have ended and were collected here.
        ended = os.times()
        ticks = (ended.children_user + ended.children_system) * _TICKS
        ours = [str(self.notifier)] if self.notifier else []
        for pid in [*self._processes(), *ours]:
            ticks += sum(map(int, process_tree.stat_of(pid)[11:15]))
        return ticks / _TICKS


class ProcessMeter:
    """Measures a process that keeps its state, after each of its runs.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        self._stat = _opened(pid, "stat")
        self._status = _opened(pid, "status")
        self._faults: list[bytes] = []
        self._peak = 0

    def read(self) -> tuple[float, int]:
        """Return the CPU seconds and the peak resident bytes of the process.

        The seconds are its own and those of its collected children. Both are 0 once
        the process has ended.
        """
        # The name before the last parenthesis may hold anything. From proc(5): minflt,
        # majflt and rss are the fields 10, 12 and 24, CPU times 14 to 17.
        fields = _text_of(self._stat).rpartition(b")")[2].split(None, 22)
        faults = [fields[7], fields[9], fields[21]] if fields else []
        if faults != self._faults:
            # Nothing becomes resident without a fault, and `status` is slow to read.
            self._faults, self._peak = faults, self._peak_bytes()
        return sum(map(int, fields[11:15])) / _TICKS, self._peak

    def _peak_bytes(self) -> int:
        text = _text_of(self._status)
        _, found, rest = text.partition(b"VmHWM:")
        if not found:
            # gVisor keeps no peak: the most that was resident at the end of a run.
            _, found, rest = text.partition(b"VmRSS:")
        size = int(rest.split(None, 1)[0]) * 1024 if found else 0
        return max(size, self._peak)

    def close(self) -> None:
        """Close the process's files."""
        for fd in (self._stat, self._status):
            if fd is not None:
                os.close(fd)


def _opened(pid: int, name: str) -> int | None:
    try:
        return os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    except OSError:
        return None


def _text_of(fd: int | None) -> bytes:
    try:
        return b"" if fd is None else os.pread(fd, 8192, 0)
    except OSError:
        return b""
