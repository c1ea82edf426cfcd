"""Keys of calls that wait for a person, when their process dies."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from toolcell.core import StoreUnavailableError, ToolExecutionError
from toolcell.tools import SQLiteIdempotency
from toolcell.tools.stores.idempotency import CallBody

pytestmark = pytest.mark.anyio
PAY_1, PAY_2 = (CallBody("pay", {"amount": amount}) for amount in (1, 2))


@pytest.mark.promise("C9")
@pytest.mark.parametrize("opened", ["before the death", "after it"])
async def test_an_id_whose_call_only_waited_is_free_again(
    tmp_path: Path, opened: str
) -> None:
    def store() -> SQLiteIdempotency:
        return SQLiteIdempotency(tmp_path / "keys.db")

    dies, other = store(), store()
    for key in ("waits", "runs", "goes on"):
        assert await dies.claim(key, PAY_1, repeatable=False) is None
    dies.park(["waits", "goes on"])
    dies.unpark(["goes on"])
    with anyio.move_on_after(0.05) as waiting:
        await other.claim("waits", PAY_1, repeatable=False)
    assert waiting.cancelled_caught, "its process lives"
    # The kernel takes the lock of a process that is killed.
    dies._owner.close(holds=True)
    finder = other if opened == "before the death" else store()

    assert await finder.claim("waits", PAY_2, repeatable=False) is None
    for key in ("runs", "goes on"):
        with pytest.raises(ToolExecutionError, match="not known"):
            await finder.claim(key, PAY_1, repeatable=False)
    with pytest.raises(StoreUnavailableError, match="taken over"):
        dies.unpark(["waits"])
    for each in {dies, other, finder}:
        each._file.close()
