"""From a module and a table of rules to something JAX can trace.

Two ways, one rule table:

- `splice`: a module whose shapes are all known becomes a finished Jaxpr. Each distinct operation is traced once, through its
  rule, and its equations are copied for every other occurrence.
- `direct`: a module with sizes unknown before the call is run rule by rule under the caller's trace, where the shapes are
  known; what depends on shapes alone is computed on the spot.
"""

from unlower.evaluate.direct import evaluate_directly
from unlower.evaluate.library import check_gradients
from unlower.evaluate.splice import splice
from unlower.evaluate.support import check_supported, is_static

__all__ = ["check_gradients", "check_supported", "evaluate_directly", "is_static", "splice"]
