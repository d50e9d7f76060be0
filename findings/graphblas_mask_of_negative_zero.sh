#!/usr/bin/env bash
# python-graphblas 2025.2.0 with suitesparse-graphblas 9.4.5.0: a value mask selects where it holds -0.0.
#
# The guess: a value mask, C(mask.V), selects what a cast of its values to bool makes true, and -0.0, which equals 0,
# selects nothing, as a cast of it by the same library shows.
# What happens instead: 0.0 selects nothing and -0.0 does, as 1.0. select("!=", 0) and the cast take it as zero.
# Why it matters: a mask that is a product, as activations times a 0/1 mask or a pruned weight's gradient, has a -0.0 for
# each negative factor, and about half of what is masked comes back. Cast to bool first: C(mask.dup(bool).V).
# Seen: values [0.0, -0.0, nan, 1.0] as a mask select [1, 2, 3], cast to bool [2, 3], and as "!= 0" [2, 3].
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet python-graphblas==2025.2.0 suitesparse-graphblas==9.4.5.0 numpy==2.4.6
"$folder/python/bin/python" - <<'END'
import graphblas
import numpy as np

mask = graphblas.Vector.from_coo(range(4), np.float32([0.0, -0.0, np.nan, 1.0]))


def selected(mask):
    """The places that a value mask lets an assignment write."""
    out = graphblas.Vector(np.float32, 4)
    out(mask.V) << graphblas.Vector.from_scalar(7, 4, np.float32)
    return out.to_coo()[0].tolist()


places = selected(mask)
cast = selected(mask.dup(bool))
unequal = graphblas.select.valuene(mask, 0).new().to_coo()[0].tolist()
print("as a mask:", places, "cast to bool:", cast, "!= 0:", unequal)
assert places == [1, 2, 3] and cast == unequal == [2, 3]
END
