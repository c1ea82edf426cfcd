"""Proof of who people are: passkeys, OIDC, sessions, and what follows for rights."""
