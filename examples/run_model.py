"""Brings a network back to life from its HLO text, runs it, and differentiates it twice.

    python examples/run_model.py [FILE]

The file holds the energy of a water molecule as a function of three positions, with trained weights inside;
`make_model.py` wrote it. It has no derivative. JAX does: the forces are the gradient, and the vibrations come out of
the Hessian.
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

import unlower

FILE = pathlib.Path(__file__).parent / "data" / "water_energy.hlo.txt"
MASSES = np.repeat(np.array([15.995, 1.008, 1.008], np.float32), 3)  # O, H, H, for each coordinate
WAVENUMBER = 521.47  # sqrt(eV / (angstrom^2 * atomic mass unit)) in 1/cm


def water(bond=0.9572, angle=104.52):
    """Positions of O, H, H in angstroms, the first bond stretched or shrunk to `bond`."""
    turn = np.deg2rad(angle)
    return np.array([[0, 0, 0], [bond, 0, 0], [0.9572 * np.cos(turn), 0.9572 * np.sin(turn), 0]], np.float32)


def main():
    """Loads, runs, differentiates."""
    program = unlower.load(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)
    print(program)

    print("\nenergy along a stretch of one bond (vmap), in eV")
    bonds = (0.86, 0.91, 0.96, 1.01, 1.06)
    for bond, energy in zip(bonds, jax.vmap(program)(jnp.stack([water(b) for b in bonds])), strict=True):
        print(f"  {bond:.2f} A  {energy:8.4f}")

    print("\nforces with that bond at 1.06 A (grad), in eV/A; they add up to nothing, as they must")
    forces = -jax.grad(program)(water(1.06))
    for atom, force in zip("OHH", np.round(forces, 4) + 0.0, strict=True):  # no minus before a zero
        print(f"  {atom}  {force[0]:8.4f} {force[1]:8.4f} {force[2]:8.4f}")
    print(f"  sum {np.abs(forces.sum(axis=0)).max():.0e}")

    print("\nvibrations at rest (hessian), in 1/cm; measured on real water: 1595, 3657, 3756")
    hessian = jax.jit(jax.hessian(program))(water()).reshape(9, 9) / np.sqrt(np.outer(MASSES, MASSES))
    print("  " + ", ".join(f"{WAVENUMBER * np.sqrt(max(e, 0)):.0f}" for e in np.linalg.eigvalsh(hessian)[-3:]))


if __name__ == "__main__":
    main()
