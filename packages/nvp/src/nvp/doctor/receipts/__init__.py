"""Receipts: what a stack consists of, why, and which workloads have run on it."""
