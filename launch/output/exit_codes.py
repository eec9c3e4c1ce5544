"""What every command returns."""

import sys
from collections.abc import Callable

from launch.output.lasting import lasting_output
from shared.errors import ConfigurationError

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def exit_code(command: Callable[[], int]) -> int:
    """Run a command, and return its exit code: a user's mistake is one line, and no closed terminal ends it."""
    with lasting_output():
        try:
            return command()
        except ConfigurationError as error:
            print(f"error: {error}", file=sys.stderr)
            return EXIT_USAGE
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
