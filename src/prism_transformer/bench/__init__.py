"""Speed, measured side by side: interleaved rounds, medians, spread."""
