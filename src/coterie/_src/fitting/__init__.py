"""The public door: `ct.fit`, what it takes and what it returns."""

from coterie._src.fitting.names import attack, registered
from coterie._src.fitting.result import Result
from coterie._src.fitting.run import fit

__all__ = ["Result", "attack", "fit", "registered"]
