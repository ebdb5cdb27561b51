"""`python -m headway.cli`, where the script is not on the path."""

from headway.cli import main

if __name__ == "__main__":
    main()
