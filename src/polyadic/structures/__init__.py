"""The values that flow between the rooms: NumPy only, no torch."""
