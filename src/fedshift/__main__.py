"""``python -m fedshift``."""

from fedshift.cli import main

if __name__ == "__main__":
    main()
