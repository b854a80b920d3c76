"""GPU code inside wheels and libraries: archives, ELF, PE, fatbin containers."""
