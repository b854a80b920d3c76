"""Regular wheels: identify a build, its requirements, and whether it runs.

A *build* is a wheel without a variant label that contains GPU code. Modules in
this package never open a connection or query the driver.
"""
