"""Pages and files of other indexes, over HTTP."""
