"""Figures from plain numbers. Nothing here imports torch."""
