"""Tables, figures and pages. Nothing here imports torch."""
