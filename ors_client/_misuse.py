"""What the clients say to a program that was written for the other one, or for the SDK, instead of Python's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

_OF_THE_SDK = {
    "environments": "client.environment(name, variant=...)",
    "rollout": "client.rollouts.start(...)",
    "get_task_range": "list_tasks(split, start, stop)",
    "list_required_secrets": "required_secrets()",
    "get_task_difficulty": "task_difficulty(...)",
}


class Unlike:
    """Names what is here for a name of the SDK."""

    _instead: ClassVar[str]

    def __init_subclass__(cls, *, instead: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if instead is not None:
            cls._instead = instead

    if not TYPE_CHECKING:  # a type checker shall not take every name for one that is there

        def __getattr__(self, name: str) -> NoReturn:
            hint = f"; write {_OF_THE_SDK[name]}" if name in _OF_THE_SDK else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)


class AsyncOnly(Unlike):
    """A context manager that is entered with `async with`, and says so."""

    def __enter__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} is entered with `async with`; for `with`, in blocking code, there is {self._instead}.")

    def __exit__(self, *_: object) -> None: ...


class BlockingOnly(Unlike):
    """A context manager that is entered with `with`, and says so."""

    async def __aenter__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} is entered with `with`; for `async with` there is {self._instead}.")

    async def __aexit__(self, *_: object) -> None: ...
