"""Transforms of JAX functions, each a short example of what `unlower.interpret` is for."""

from unlower.transforms.effects import EffectError, effect_handler, perform
from unlower.transforms.flops import Count, CountError, count_flops
from unlower.transforms.harvest import PlantError, harvest, plant, tag
from unlower.transforms.intermediates import name_intermediates
from unlower.transforms.interval import Bounds, Interval, interval
from unlower.transforms.inverse import InverseError, inverse, inverse_and_log_det
from unlower.transforms.nonfinite import NonFinite, find_nonfinite
from unlower.transforms.swap import swap

__all__ = [
    "Bounds",
    "Count",
    "CountError",
    "EffectError",
    "Interval",
    "InverseError",
    "NonFinite",
    "PlantError",
    "count_flops",
    "effect_handler",
    "find_nonfinite",
    "harvest",
    "interval",
    "inverse",
    "inverse_and_log_det",
    "name_intermediates",
    "perform",
    "plant",
    "swap",
    "tag",
]
