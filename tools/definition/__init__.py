"""The definition of a tool: options, schema, validation."""
