"""Trains a small network and writes its HLO, weights inside: the file that `run_model.py` brings back to life.

    python examples/make_model.py [--steps N] [--out FILE]

The network learns the energy of a water molecule from the positions of its three atoms. What it is trained on is a
textbook formula (a Morse potential for each O-H bond, a spring for the angle), so that the outcome can be checked;
what is written is what people have when a model was exported and the code that made it is gone: one function, frozen
weights, no gradient.

Everything is plain JAX and seeded: the same JAX release writes the same file.
"""

import argparse
import pathlib
import re

import jax
import jax.numpy as jnp

HERE = pathlib.Path(__file__).parent
SIZES = (3, 32, 32, 1)
BOND, ANGLE = 0.9572, jnp.deg2rad(104.52)  # at rest: angstroms, radians
DEPTH, WIDTH, SPRING = 4.5, 2.2, 3.2  # eV, 1/angstrom, eV/radian^2

REST = jnp.array([[0.0, 0.0, 0.0], [BOND, 0.0, 0.0], [BOND * jnp.cos(ANGLE), BOND * jnp.sin(ANGLE), 0.0]])  # O, H, H


def distances(positions):
    """The three distances between the atoms: O-H, O-H, H-H."""
    pairs = positions[jnp.array([0, 0, 1])] - positions[jnp.array([1, 2, 2])]
    return jnp.sqrt(jnp.sum(pairs * pairs, axis=-1))


AT_REST = distances(REST)


def textbook_energy(positions):
    """The energy in eV that the network is to learn."""
    first, second, across = distances(positions)
    morse = sum(DEPTH * (1 - jnp.exp(-WIDTH * (bond - BOND))) ** 2 for bond in (first, second))
    cosine = (first**2 + second**2 - across**2) / (2 * first * second)
    angle = jnp.arccos(jnp.clip(cosine, -0.999, 0.999))
    return morse + 0.5 * SPRING * (angle - ANGLE) ** 2


def initial(key):
    """Weights and biases, drawn by Glorot's rule."""
    layers = zip(jax.random.split(key, len(SIZES) - 1), SIZES[:-1], SIZES[1:], strict=True)
    return [(jax.random.normal(k, (m, n)) * jnp.sqrt(2 / (m + n)), jnp.zeros(n)) for k, m, n in layers]


def energy(parameters, positions):
    """The network: distances in, energy in eV out."""
    hidden = (distances(positions) - AT_REST) * 4.0
    for index, (weight, bias) in enumerate(parameters):
        with jax.named_scope(f"layer{index}"):
            hidden = hidden @ weight + bias
            hidden = jnp.tanh(hidden) if index < len(parameters) - 1 else hidden
    return hidden[0]


def train(steps, batch=256, peak=1e-2):
    """Adam on random geometries around rest, with a cosine schedule; returns the parameters and the error in eV."""

    def sample(key):
        positions = REST + 0.08 * jax.random.normal(key, (batch, 3, 3))
        return positions, jax.vmap(textbook_energy)(positions)

    def loss(parameters, key):
        positions, targets = sample(key)
        return jnp.mean((jax.vmap(energy, (None, 0))(parameters, positions) - targets) ** 2)

    def step(state, inputs):
        parameters, mean, square = state
        count, key = inputs
        gradient = jax.grad(loss)(parameters, key)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, gradient)
        rate = peak * 0.5 * (1 + jnp.cos(jnp.pi * count / steps))

        def move(p, m, s):
            return p - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.99**count)) + 1e-8)

        return (jax.tree.map(move, parameters, mean, square), mean, square), None

    keys = jax.random.split(jax.random.key(0), steps + 2)
    parameters = initial(keys[0])
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    counts = jnp.arange(1, steps + 1, dtype=jnp.float32)
    (parameters, _, _), _ = jax.jit(lambda s, xs: jax.lax.scan(step, s, xs))(
        (parameters, zeros, zeros), (counts, keys[2:])
    )
    return parameters, float(jnp.sqrt(loss(parameters, keys[1])))


def hlo_text(parameters):
    """The network's HLO, weights written out in full."""
    lowered = jax.jit(lambda positions: energy(parameters, positions)).lower(REST)
    text = lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True)
    return re.sub(r"^HloModule \S+,", "HloModule water_energy,", text)


def main():
    """Trains, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "data" / "water_energy.hlo.txt")
    options = parser.parse_args()
    parameters, error = train(options.steps)
    options.out.write_text(hlo_text(parameters))
    print(f"{options.out.name}: {options.out.stat().st_size} bytes, error {1000 * error:.1f} meV")


if __name__ == "__main__":
    main()
