"""The raw scan h[t] = a h[t-1] + b over arrays of any shape, and its gradients."""
