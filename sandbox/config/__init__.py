"""Settings of a sandbox and the rules that check them."""
