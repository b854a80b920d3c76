"""The dynamic loader's rules (ld.so(8)), followed on paper: nothing is loaded.

`process` loads libraries as one process would, and `preloading` does what torch and jax
do first.
"""
