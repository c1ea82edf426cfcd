"""The other ways to run a program, each as its users would start it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

from harness.measure import BURST, SLOW_BURST, Contender, Missing, WrongResult

PYTHON = "/usr/bin/python3"
"""The interpreter of both sides where cells are processes of this machine."""

TOOLCELL = str(Path(sys.executable).with_name("toolcell"))
"""The command of the environment that measures."""

HELLO = "print(1)"
_WARM = f"""\
import os, sys
while os.read(0, 1):
    if os.fork() == 0:
        exec(compile({HELLO!r}, "main.py", "exec"))
        sys.stdout.flush()
        os._exit(0)
    os.wait()
    os.write(1, b".")
"""
_BWRAP = (
    *("bwrap", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib"),
    *("--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin"),
    *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--unshare-all"),
)


def _environment() -> dict[str, str]:
    """Return ours, less what keeps Python from keeping what it compiled.

    Whoever installs a package has its modules compiled.
    """
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def output(arguments: Sequence[str], *, quiet: bool = False) -> bytes:
    """Run a command to its end; return what it printed."""
    done = subprocess.run(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        env=_environment(),
        check=False,
    )
    if done.returncode:
        raise WrongResult(f"{' '.join(arguments)} ended with {done.returncode}")
    return done.stdout


def command(
    name: str,
    arguments: Sequence[str],
    *,
    burst: int = BURST,
    quiet: bool = False,
    prints: bytes | None = b"1\n",
) -> Contender:
    """Return a contender that starts a command and reads its output.

    Args:
        name: The contender's.
        arguments: The command line.
        burst: Runs in a turn.
        quiet: True to drop standard error.
        prints: The output that is right; None: any.
    """

    async def run() -> None:
        # Blocking on purpose: nothing of ours runs while the baseline does.
        if output(arguments, quiet=quiet) != prints and prints is not None:
            raise WrongResult(f"{name} did not print {prints!r}")

    return Contender(name=name, run=run, burst=burst)


def first_output(name: str, arguments: Sequence[str]) -> Contender:
    """Return a contender that prints 1; its own clock stops at the first byte."""

    async def run() -> float:
        started = time.perf_counter()
        with subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        ) as process:
            assert process.stdout is not None
            printed = process.stdout.read(1)
            seconds = time.perf_counter() - started
            printed += process.stdout.read()
        if printed != b"1\n":
            raise WrongResult(f"{name} did not print 1")
        return seconds * 1000

    return Contender(name=name, run=run, burst=SLOW_BURST)


def needs(program: str) -> None:
    """Raise Missing if a program is not there."""
    if which(program) is None:
        raise Missing(f"{program} is not installed")


def plain_arguments(code: str) -> list[str]:
    """Return the command line of a program without any walls."""
    needs(PYTHON)
    return [PYTHON, "-I", "-c", code]


def bwrap_arguments(code: str) -> list[str]:
    """Return the command line of a program behind bubblewrap."""
    needs("bwrap")
    return [*_BWRAP, *plain_arguments(code)]


def plain() -> Contender:
    """Return a bare interpreter, started anew for each program."""
    return command("python3 -I -c", plain_arguments(HELLO))


def bwrap() -> Contender:
    """Return bubblewrap, started anew for each program."""
    return command("bwrap python3 -I -c", bwrap_arguments(HELLO))


@contextmanager
def warm() -> Iterator[Contender]:
    """Yield a warm interpreter that forks itself for each program, without walls."""
    needs(PYTHON)
    arguments = [PYTHON, "-I", "-c", _WARM]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        asks, answers = process.stdin, process.stdout

        async def run() -> None:
            asks.write(b"x")
            printed = b""
            while not printed.endswith(b"."):
                printed += answers.read(8) or b"nothing."
            if printed != b"1\n.":
                raise WrongResult(f"a fork printed {printed!r}")

        yield Contender(name="fork of python3", run=run)
        asks.close()


def bwrap_per_second(runs: int, workers: int) -> float:
    """Return how many programs a second bubblewrap gets through."""
    arguments = bwrap_arguments(HELLO)
    with ThreadPoolExecutor(workers) as threads:
        started = time.perf_counter()
        results = list(threads.map(lambda _: output(arguments), range(runs)))
        elapsed = time.perf_counter() - started
    if set(results) != {b"1\n"}:
        raise WrongResult("bwrap did not print 1")
    return runs / elapsed


def _in_image() -> list[str]:
    return ["python3", "-I", "-c", HELLO]


def docker_run(image: str, runtime: str, *, network: bool = True) -> Contender:
    """Return `docker run --rm`: a container for each program."""
    flags = [f"--runtime={runtime}", *([] if network else ["--network=none"])]
    arguments = ["docker", "run", "--rm", *flags, image, *_in_image()]
    name = f"docker run --rm {' '.join(flags)}"
    return command(name, arguments, burst=SLOW_BURST)


@contextmanager
def docker_exec(
    image: str, runtime: str, inside: Sequence[str] = (), prints: bytes = b"1\n"
) -> Iterator[Contender]:
    """Keep a container for `docker exec`; it ends when its input does.

    Args:
        image: The container's.
        runtime: Its runtime.
        inside: The command to execute; empty is a Python that prints 1.
        prints: Its output.
    """
    waits = "import sys; print('up', flush=True); sys.stdin.read()"
    start = ["docker", "run", "--rm", "-i", f"--runtime={runtime}", "--cidfile"]
    with TemporaryDirectory() as folder:
        cidfile = f"{folder}/id"
        container = subprocess.Popen(
            [*start, cidfile, image, "python3", "-c", waits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with container:
            assert container.stdout is not None
            if container.stdout.readline() != b"up\n":
                raise Missing(f"docker run --runtime={runtime} does not work")
            name = Path(cidfile).read_text()
            arguments = ["docker", "exec", name, *(inside or _in_image())]
            yield command("docker exec", arguments, prints=prints)


def needs_docker(image: str, runtime: str) -> None:
    """Raise Missing if the engine, the image or the runtime is not there."""
    import docker
    import docker.errors

    needs("docker")
    try:
        client = docker.from_env(timeout=10)
        try:
            runtimes = client.info()["Runtimes"]
            client.images.get(image)
        finally:
            client.close()
    except docker.errors.ImageNotFound:
        raise Missing(f"the Docker engine has no image {image}") from None
    except docker.errors.DockerException as error:
        raise Missing(f"no Docker engine answers: {error}") from None
    if runtime not in runtimes:
        raise Missing(f"the Docker engine has no runtime {runtime}")
