"""Tests of the project itself: packages, examples, documents, manifests."""
