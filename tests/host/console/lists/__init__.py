"""Lists of records: filters, and files of a million."""
