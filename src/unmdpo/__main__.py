"""`python -m unmdpo`, which is how `torchrun` starts it."""

from unmdpo.cli import main

if __name__ == "__main__":
    main()
