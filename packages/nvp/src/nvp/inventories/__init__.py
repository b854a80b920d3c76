"""Read machines from Kubernetes, HTCondor, conda, nvidia-smi and DCGM.

Each source yields named machines with an `Environment`. Missing facts are ``None`` with
a reason, never guessed.
"""
