"""The first stage: boxes of a photo, each with P(class | box)."""
