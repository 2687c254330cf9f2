"""Cells whose pieces of time compose in stages, one after another."""

# A stage after another, whose coefficients and inputs read it; with its states before it and after it, and within n values.
STAGES = {
    "name": "stages",
    "states": ["a", "b", "c"],
    "parameters": ["k"],
    "equations": """
        a[t] = 0.5 * a[t-1] + W.x
        b[t] = sigmoid(a[t]) * b[t-1] + tanh(k * a[t-1]) * c[t-1]
        c[t] = 0.3 * b[t-1] + W.z
    """,
    "output": "b[t] * c[t] + tanh(a[t])",
}
STAGES_OF_VALUES = {
    "name": "stages_of_values",
    "states": {"m": 1, "u": "n", "v": "n"},
    "shared": ["b", "c"],
    "equations": """
        m[t] = 0.7 * m[t-1] + W.x
        u[t] = 0.5 * u[t-1] - 0.4 * v[t-1] + S.b * tanh(m[t])
        v[t] = 0.3 * u[t-1] + 0.6 * v[t-1]
    """,
    "output": "sum(S.c * u[t] + v[t])",
}
VALUES = {
    "name": "coupled_values",
    "states": {"u": "n", "v": "n"},
    "shared": ["b"],
    "equations": "u[t] = 0.5 * u[t-1] - sigmoid(W.z) * v[t-1] + S.b\nv[t] = 0.3 * u[t-1] + 0.6 * v[t-1]",
    "output": "sum(u[t] * v[t])",
}
# Delays of more states than one map has, before a scan that reads them through a curve.
DELAYS = {
    "name": "delays",
    "states": ["h", "d0", "d1", "d2", "d3", "d4"],
    "equations": "d0[t] = W.x\n"
    + "".join(f"d{place}[t] = d{place - 1}[t-1]\n" for place in range(1, 5))
    + "h[t] = sigmoid(d4[t-1]) * h[t-1] + d0[t-1]",
    "output": "h[t] + d4[t]",
}
