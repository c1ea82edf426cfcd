"""The identities of people: accounts, passkeys, sessions, rights, and OIDC."""
