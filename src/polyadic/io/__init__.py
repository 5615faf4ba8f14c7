"""Records on disk: ours, and those that others have published."""
