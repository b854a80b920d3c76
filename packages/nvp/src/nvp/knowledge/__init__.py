"""Tables of GPUs, CUDA toolkits and drivers, with their sources and typed access."""
