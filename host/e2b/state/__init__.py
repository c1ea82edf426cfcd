"""The sandboxes of the sandbox API, open or kept, without a word of HTTP."""
