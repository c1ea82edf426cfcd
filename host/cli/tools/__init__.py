"""Commands about tools and calls of them."""
