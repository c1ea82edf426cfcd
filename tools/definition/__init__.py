"""What a tool is: options, schema, validation."""
