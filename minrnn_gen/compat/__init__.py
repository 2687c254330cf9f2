"""Fronts with the signatures of other libraries, each imported by its own name; none computes anything itself."""
