"""A program that needs a package."""

import numpy

print(numpy.mean([1, 2, 3]))
