"""Where attention goes: exact statistics of every head, without a T x T matrix."""

PROFILE_FILE = "attention.json"
