"""Commands about the cells, images and packages of machines."""
