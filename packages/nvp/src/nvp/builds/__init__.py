"""Regular wheels: identify a build and its requirements, and decide whether it runs.

A *build* is a wheel without a variant label that contains GPU code. Modules in
this package never open a connection or query the driver.
"""
