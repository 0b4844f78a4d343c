"""How a module's forward is called: positional, keyword and mixed calls become one set of named arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aitune.exceptions import UnsupportedCallError
from aitune.torch.module.sample import Sample

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class ForwardSignature:
    """Parameter names and kinds of a forward; turns calls into named arguments and back.

    Args:
        positional: Parameters that may be given by position, in order.
        num_positional_only: How many of them, from the first, may not be given by name.
        var_positional: Name of the ``*args`` parameter, if any.
        keyword_only: Parameters that must be given by name.
        var_keyword: Name of the ``**kwargs`` parameter, if any.
        required: Parameters without a default.
        indirect: Whether something stands between a call and these parameters (a decorator, a partial), which may look
            at the arguments before they are named.
        by_name: Positional parameters that :meth:`to_call` gives by name all the same.
    """

    positional: tuple[str, ...] = ()
    num_positional_only: int = 0
    var_positional: str | None = None
    keyword_only: tuple[str, ...] = ()
    var_keyword: str | None = None
    required: frozenset[str] = frozenset()
    indirect: bool = False
    by_name: frozenset[str] = frozenset()

    @classmethod
    def from_callable(cls, forward: Callable[..., Any]) -> ForwardSignature:
        """Read the signature of a bound forward; one that cannot be read counts as ``(*args, **kwargs)``."""
        try:
            parameters = inspect.signature(forward).parameters.values()
            own = inspect.signature(forward, follow_wrapped=False).parameters.values()
        except (TypeError, ValueError):
            return cls(var_positional="args", var_keyword="kwargs", indirect=True)
        by_kind: dict[Any, list[str]] = {}
        for parameter in parameters:
            by_kind.setdefault(parameter.kind, []).append(parameter.name)
        positional_only = by_kind.get(inspect.Parameter.POSITIONAL_ONLY, [])
        return cls(
            positional=(*positional_only, *by_kind.get(inspect.Parameter.POSITIONAL_OR_KEYWORD, [])),
            num_positional_only=len(positional_only),
            var_positional=next(iter(by_kind.get(inspect.Parameter.VAR_POSITIONAL, [])), None),
            keyword_only=tuple(by_kind.get(inspect.Parameter.KEYWORD_ONLY, [])),
            var_keyword=next(iter(by_kind.get(inspect.Parameter.VAR_KEYWORD, [])), None),
            required=frozenset(
                p.name
                for p in parameters
                if p.default is inspect.Parameter.empty and p.kind in (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
            ),
            # Names and kinds: defaults may be tensors, which do not compare to one truth.
            indirect=not inspect.ismethod(forward)
            or [(p.name, p.kind) for p in own] != [(p.name, p.kind) for p in parameters],
        )

    def in_style_of(self, kwargs: Mapping[str, Any]) -> ForwardSignature:
        """Return a signature whose :meth:`to_call` gives by name what one call gave by name, where that may matter.

        A decorator sees the arguments as they were given, so a recorded call has to be repeated in the same way.

        Args:
            kwargs: Keyword arguments of that call.
        """
        return replace(self, by_name=frozenset(kwargs) & set(self.positional)) if self.indirect else self

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Name the arguments of a call; parameters left out stay out, extra keywords go last.

        Extra keywords keep their order, because a forward may go through them.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.

        Returns:
            Values by parameter name. Extra positional arguments are a tuple under the name of ``*args``.

        Raises:
            UnsupportedCallError: The call does not fit the signature.
        """
        named = dict(zip(self.positional, args, strict=False))
        extra = args[len(self.positional) :]
        if extra and self.var_positional is None:
            raise UnsupportedCallError(f"forward takes {len(self.positional)} positional arguments, got {len(args)}")
        if extra:
            named[str(self.var_positional)] = tuple(extra)
        by_name = (*self.positional[self.num_positional_only :], *self.keyword_only)
        for name in by_name:
            if name in kwargs:
                if name in named:
                    raise UnsupportedCallError(f"forward got argument {name!r} by position and by name")
                named[name] = kwargs[name]
        unknown = [name for name in kwargs if name not in by_name]
        if unknown and self.var_keyword is None:
            raise UnsupportedCallError(f"forward has no parameter {unknown[0]!r}")
        by_position_only = {*self.positional[: self.num_positional_only], self.var_positional}
        for name in unknown:
            # Python hands such a keyword to **kwargs; here one name can hold one value only.
            if name in by_position_only:
                raise UnsupportedCallError(
                    f"forward got keyword {name!r}, which is also the name of a parameter given by position"
                )
            named[name] = kwargs[name]
        missing = sorted(self.required - set(named))
        if missing:
            raise UnsupportedCallError(f"forward needs argument {missing[0]!r}")
        return self._ordered(named)

    def _ordered(self, named: dict[str, Any]) -> dict[str, Any]:
        declared = [*self.positional, *([self.var_positional] if self.var_positional else []), *self.keyword_only]
        order = [name for name in declared if name in named]
        return {name: named[name] for name in (*order, *(name for name in named if name not in declared))}

    def to_call(self, named: Mapping[str, Any]) -> Sample:
        """Write named arguments as a call: by position as far as there is no gap, by name after that.

        Args:
            named: Values by parameter name, as :meth:`bind` returns them.
        """
        args: list[Any] = []
        for name in self.positional:
            if name not in named or name in self.by_name:
                break
            args.append(named[name])
        given = set(self.positional[: len(args)])
        if self.var_positional is not None and self.var_positional in named:
            args.extend(named[self.var_positional])
            given.add(self.var_positional)
        return Sample(tuple(args), {name: value for name, value in named.items() if name not in given})
