"""Records by name: the one place where the names of a kind are listed."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import Generic, Protocol, TypeVar


class Record(Protocol):
    """Anything with a name and a line that says what it is."""

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str: ...


R = TypeVar("R", bound=Record)


class Registry(Generic[R]):
    """The records of one kind, in their order; those of other packages come last.

    Parameters
    ----------
    kind : what the records are, for messages ("method").
    records : those of this package.
    group : entry points under which other packages offer records ("coterie.methods"); they are loaded when a name is
        first looked up.
    variant : a suffix of names, and the function that makes the record of such a name from that of the name without it;
        it raises a ValueError for a record that has no such variant.
    """

    def __init__(
        self,
        kind: str,
        records: Iterable[R],
        group: str | None = None,
        variant: tuple[str, Callable[[R], R]] | None = None,
    ) -> None:
        self.kind, self._group, self._variant = kind, group, variant
        self._records: dict[str, R] = {}
        for record in records:
            self.add(record)
        self.own_names = tuple(self._records)
        """Without those of other packages, which are not loaded for it."""

    def add(self, record: R) -> R:
        """Add a record; its name must be new."""
        if record.name in self._records:
            raise ValueError(f"{self.kind}: {record.name} is there already; choose another name")
        self._records[record.name] = record
        return record

    def _all(self) -> dict[str, R]:
        group, self._group = self._group, None
        for point in entry_points(group=group) if group else ():
            try:
                self.add(point.load())
            except Exception as error:  # somebody else's package must not keep ours from working
                warnings.warn(f"{self.kind} {point.name}: cannot be loaded ({error})", RuntimeWarning, stacklevel=3)
        return self._records

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._all())

    def __iter__(self) -> Iterator[R]:
        return iter(tuple(self._all().values()))

    def __contains__(self, name: object) -> bool:
        return name in self._all() or (isinstance(name, str) and self._base(name) in self._all())

    def __getitem__(self, name: str) -> R:
        known, resolved = self._all(), self.resolve(name)
        if resolved in known or self._variant is None:
            return known[resolved]
        return self._variant[1](known[self._base(resolved)])

    def _base(self, name: str) -> str:
        """The name without the suffix of a variant; the empty name where it has none."""
        suffix = "" if self._variant is None else self._variant[0]
        return name.removesuffix(suffix) if suffix and name.endswith(suffix) else ""

    def resolve(self, name: str) -> str:
        """The name itself, or the present one of an older name, with a warning.

        An unknown name is a ValueError that says what there is and which name is near.
        """
        known = self._all()
        if name in known:
            return name
        if isinstance(name, str) and (base := self._base(name)) in known:
            assert self._variant is not None
            return self._variant[1](known[base]).name
        for record in known.values():
            if name in getattr(record, "aliases", ()):
                warnings.warn(
                    f"{self.kind} {name} is now called {record.name}; the old name goes in 0.2",
                    DeprecationWarning,
                    stacklevel=3,
                )
                return record.name
        near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f'must be one of {", ".join(known)}, got "{name}"{hint}')

    def described(self) -> str:
        """One line for each record, for help texts."""
        width = max((len(name) for name in self._all()), default=0)
        return "\n".join(f"{record.name:{width}}  {record.summary}" for record in self)
