"""The relation model (Network Architecture)."""
