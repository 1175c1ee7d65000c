"""The intermediate representation: frozen dataclasses in StableHLO's vocabulary. No JAX, no MLIR."""
