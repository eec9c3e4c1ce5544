"""Other values of settings."""

from typing import Annotated, Any, Literal, get_args, get_origin

from launch.settings.files import KINDS


def another(name: str, value: Any) -> Any:
    """Another value of a setting, which may be one that is refused."""
    kind: Any = KINDS[name]
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != value)
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return 0.5 * value or 0.5
        case tuple():
            return (*value[1:], value[-1] / 2) if value and isinstance(value[0], int | float) else ("wandb",)
        case dict():
            return {"max_episode_steps": 7}
        case str():
            return f"{value}-other"
    return next((other for word, other in (("int", 3), ("float", 0.5)) if word in str(kind)), "other")
