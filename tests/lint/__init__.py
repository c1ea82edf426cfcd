"""Rules of the source: style, types, structure. `pytest -m lint` runs them."""
