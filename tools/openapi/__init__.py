"""Tools of OpenAPI documents."""
