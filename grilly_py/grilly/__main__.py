"""``grilly`` and ``python -m grilly``: the command line."""

import sys


def main() -> int:
    """Run the command line, and give its exit status."""
    try:
        from .cli import main as command  # here, where an interrupt is seen

        return command()
    except KeyboardInterrupt:  # before the command saw to it itself
        print("grilly: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
