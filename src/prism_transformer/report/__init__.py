"""The report: a page, tables and figures from collected studies. Nothing here imports torch."""
