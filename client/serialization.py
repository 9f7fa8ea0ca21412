"""The types of an application's keys and values, and the functions that it gives for them.

Clients are generic in these types. Without functions both are bytes: the type variables have that
as their default, which type checkers know and Python 3.11 does not.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")


def check_function(function: Any, name: str) -> Any:
    """Return the function, or None. Raises `TypeError` for what cannot be called."""
    if function is not None and not callable(function):
        raise TypeError(f"{name} is a function of one argument, not {function!r}")
    return function
