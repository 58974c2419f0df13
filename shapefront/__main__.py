"""``python -m shapefront``."""

from shapefront.studies.cli import main

if __name__ == "__main__":
    main()
