"""What tyro says of a mistake in what is typed, in one line and in this project's words."""

import difflib
import re
from collections.abc import Collection

_FRAME_OF_TYRO = re.compile(r"[\u2500-\u257f]+")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HELP = re.compile(r"Argument helptext|For full helptext|─{20,}\s*│?\s*\n.*helptext")


def in_one_line(printed: str, command: str, known: Collection[str]) -> str:
    """The mistake that tyro printed, for `tributary COMMAND`, whose options are `known`, as `section.name`."""
    text = _HELP.split(_COLOUR.sub("", printed))[0]
    line = " ".join(_FRAME_OF_TYRO.sub(" ", text).split())
    unknown = re.match(r"(?:Unrecognized options:? )+(.+?)(?: Perhaps you meant:|$)", line)
    if unknown:
        return _unknown(unknown[1].split(",")[0], command, known)
    word = re.search(r"Missing value for argument '(\w+)'", line)
    if word:
        return f"{word[1].upper()}: is missing; see tributary {command} --help"
    missing = re.search(r"Missing value for argument '(--[\w.-]+)'", line)
    if missing:
        return f"{missing[1]}: needs a value; see tributary {command} --help"
    absent = re.search(r"Missing from [^:]+: (\S+)", line)
    if absent:
        return f"{absent[1]}: is missing; see tributary {command} --help"
    unread = re.search(r"Error parsing (--[\w.-]+): Could not find valid parse for arguments: \[(.*?)\]", line)
    if unread:
        return f"{unread[1]} {unread[2].replace(chr(39), '')}: cannot be read; see tributary {command} --help"
    parsing = re.search(r"Error parsing (--[\w.-]+): (.+)", line)
    if parsing:
        option, problem = parsing.groups()
        # Of several types the last one says what is wrong; None is the other.
        several = re.match(r"no type matching .* could be instantiated from .*- <class '\w+'>: (.+)", problem)
        problem = several[1] if several else problem
        if problem.startswith("Failed to parse key-value pairs"):
            problem = "takes names and values, one after another, like length 5"
        return f"{option} {problem}{', or None' if several and 'NoneType' in parsing[2] else ''}"
    chosen = re.search(r"invalid choice '(.*?)' for argument '(--[\w.-]+)'\. Expected one of \((.*?)\)", line)
    if chosen:
        value, option, choices = chosen.groups()
        return f"{option} {value}: must be one of {choices.replace(chr(39), '').rstrip(',')}"
    line = re.sub(r"^(Parsing error|Value error|Missing arguments?|Invalid choice)\b:?", "", line)
    return line.strip() or "wrong usage"


def _unknown(word: str, command: str, known: Collection[str]) -> str:
    if not word.startswith("--"):
        return f"{word}: stands where an option should; tributary {command} --help says what may come first"
    name = word.removeprefix("--").partition("=")[0].replace("_", "-")
    last_parts: dict[str, list[str]] = {}
    for option in known:
        last_parts.setdefault(option.rpartition(".")[2], []).append(option)
    # Whoever leaves the group out, or has another one, may have the rest of the name right.
    rest = name.rpartition(".")[2]
    near = last_parts.get(rest) or difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    near = near or [
        option for part in difflib.get_close_matches(rest, last_parts, n=1, cutoff=0.75) for option in last_parts[part]
    ]
    meant = f", did you mean {' or '.join(f'--{option}' for option in sorted(near))}?" if near else ";"
    return f"{word}: there is no such option{meant} see tributary {command} --help"
