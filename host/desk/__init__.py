"""The views and acts of people who run a host, as Python: pages and REST show them."""
