"""Charts as SVG, for the console and for reports."""
