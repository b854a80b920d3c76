"""Receipts: the content of a stack, the reasons for it, and workloads run on it."""
