"""Recipes that ship, as TOML files, and the code that reads any recipe.

In comes a file or a name with overrides, out comes a ``Recipe``: ``files.py``. ``studies/`` holds
study files.
"""
