"""The text of a document is read whole, or refused."""

from __future__ import annotations

import pytest

from toolcell.core import ConfigError
from toolcell.tools.openapi.document import MAX_DOCUMENT_VALUES, read_document


@pytest.mark.promise("T13")
@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("x: &x {a: 1}\ny:\n  <<: *x\n", "merge key"),
        ("paths: {}\npaths: {}\n", "a key twice"),
        ("paths:\n  /a: {}\n  '/a': {}\n", "a key twice"),
    ],
)
def test_yaml_that_loses_parts_in_silence_is_refused(lines: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_document(f"openapi: 3.1.0\n{lines}")


@pytest.mark.promise("T30")
def test_a_version_may_be_short() -> None:
    for text in ("openapi: 3.0\n", "openapi: '3.1'\n", '{"openapi": "3.1"}'):
        assert read_document(text)
    with pytest.raises(ConfigError, match="but Swagger"):
        read_document("swagger: '2.0'\n")


def test_values_of_json_are_counted_before_they_are_built() -> None:
    commas = "," * MAX_DOCUMENT_VALUES
    # What is counted is not parsed, so nothing notices that the text breaks off.
    with pytest.raises(ConfigError, match="too many values"):
        read_document(f'{{"openapi": "3.1.0", "x": [{commas.replace(",", "0,")}')
    with pytest.raises(ConfigError, match="too many values"):
        read_document(f'\ufeff{{"openapi": "3.1.0", "x": [{commas}'.encode())

    assert read_document(f'{{"openapi": "3.1.0", "x": "{commas}"}}')["x"] == commas
