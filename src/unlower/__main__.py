"""`python -m unlower`, and the command `unlower`."""

import sys

__all__ = ["main"]


def main() -> int:
    """Runs the command line; returns the exit status."""
    try:
        from unlower.cli import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "rich":
            raise
        print("the command line needs rich; mend: pip install 'unlower[cli]'", file=sys.stderr)  # noqa: T201
        return 2
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
