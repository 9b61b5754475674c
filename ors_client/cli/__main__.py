"""The same as `ors`, for where scripts are not on the path: `python -m ors_client.cli`."""

from . import main

if __name__ == "__main__":
    main()
