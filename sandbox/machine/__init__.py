"""This machine: who is alive, which cgroups there are."""
