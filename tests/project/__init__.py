"""Tests of the project itself: style, structure, documents, manifests."""
