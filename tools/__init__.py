"""What agents can do: tools, their registry, and the executors that call them."""

__all__ = []
