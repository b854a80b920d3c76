"""Read the GPU code inside wheels and libraries, and draw conclusions from it."""
