"""Packages that start threads, or keep compiled code, where no cgroup holds memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from toolcell.sandbox import Limits, PackageRules, Sandbox, SandboxManager
from toolcell.sandbox.machine import host_cgroups

from ...conftest import CONFINED, SUBPROCESS

pytestmark = [pytest.mark.anyio, pytest.mark.full, pytest.mark.timeout(1800)]

COMPILED = """
from numba import njit
@njit(cache=True)
def total(n):
    found = 0
    for i in range(n):
        found += i
    return found
[total(10), *total.stats.cache_misses.values()]
"""
PROGRAMS = {
    "threads": """
import time
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(max_workers=10) as pool:
    list(pool.map(time.sleep, [0.05] * 20))
45
""",
    "pandas": "import pandas\nint(pandas.Series(range(10)).sum())",
    "scipy": "import scipy.stats\nround(float(scipy.stats.norm.cdf(0)) * 90)",
    "scikit-learn": """
import sklearn.cluster
fit = sklearn.cluster.KMeans(n_clusters=2, n_init=1).fit([[0], [1], [90], [91]])
round(sum(float(each[0]) for each in fit.cluster_centers_) / 91 * 45)
""",
    "seaborn": "import seaborn\nlen(seaborn.color_palette(n_colors=45))",
}


def refuse_cgroups() -> dict[str, str]:
    raise OSError("no cgroups here")


@pytest.fixture(scope="module", params=[SUBPROCESS, CONFINED], ids=lambda row: row.name)
async def unheld(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    """A manager as an ordinary user has it, whose cells have packages."""
    config = request.param.config(
        packages=("numba", "scikit-learn", "seaborn"),
        package_rules=PackageRules(seconds=900),
        limits=Limits(wall_seconds=120),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_cgroups, "create", refuse_cgroups)
        async with SandboxManager(config) as manager:
            yield manager


@pytest.mark.promise("FP3", "QP11")
@pytest.mark.parametrize("name", PROGRAMS)
async def test_libraries_run_within_the_default_memory(
    unheld: Sandbox, name: str
) -> None:
    result = await unheld.run(PROGRAMS[name])

    assert (result.status, result.value) == ("ok", 45), result.stderr
    assert result.usage.enforced_by["memory_mib"] == "watchdog"


@pytest.mark.promise("FP8")
async def test_compiled_code_is_kept(unheld: Sandbox) -> None:
    """That it was looked for, and missed once, shows that it has a place."""
    async with unheld.session() as session:
        for result in (
            await unheld.run(COMPILED),
            await session.run(COMPILED, fresh=True),
            await session.run(COMPILED),
        ):
            assert (result.status, result.value) == ("ok", [45, 1]), result.stderr
