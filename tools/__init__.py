"""Scripts that regenerate the tables in ``nvidia_variant_provider/knowledge``."""
