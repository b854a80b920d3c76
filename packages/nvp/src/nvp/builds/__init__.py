"""Regular wheels: which build one is, what it needs, and whether it runs here.

A *build* is a wheel without a variant label that contains GPU code. Nothing in this
directory opens a connection or asks the driver.
"""
