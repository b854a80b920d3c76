"""Scripts that regenerate the tables in ``packages/nvp/src/nvp/knowledge``."""
