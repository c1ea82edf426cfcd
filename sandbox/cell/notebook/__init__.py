"""Cells of notebooks: what they have beside Python; loaded when a program needs it."""
