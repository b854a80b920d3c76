"""What wheels say about themselves: their names and the files in ``*.dist-info``."""
