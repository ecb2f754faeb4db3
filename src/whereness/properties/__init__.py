"""Properties of positional encodings, measured: one function each, its definition in the docstring.

doors             a layer with taps: what an encoding does at each door
probes            the two probes: codes P and scores S
lines             both along one axis
codes             unique, bounded, linear, learnable
scores            translation invariance, monotonicity, symmetry, decay, directions on a grid
rotations         norms, group law, exact relativity, bandwidth
generalisation    independence of length, and what is new past the trained length
axes              positions of several axes
precision         half types, near and far
consistency       padding, packing, decoding, permutation
cost, traits      what it costs; what kind of encoding it is
"""

from whereness.properties.measuring import measure as measure
from whereness.properties.result import Properties as Properties
from whereness.properties.result import Verdict as Verdict
from whereness.properties.traits import Traits as Traits
from whereness.properties.traits import measured_traits as measured_traits
