"""Read the pages and files of other indexes over HTTP."""
