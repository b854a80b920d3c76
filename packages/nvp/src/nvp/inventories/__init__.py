"""Machines as others describe them: Kubernetes, HTCondor, conda, nvidia-smi and DCGM.

Each source gives named machines with an `Environment`. What a source does not say is
``None`` with a reason, and never a guess.
"""
