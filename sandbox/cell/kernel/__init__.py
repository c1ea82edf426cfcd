"""System calls, seccomp, descriptors, confinement."""
