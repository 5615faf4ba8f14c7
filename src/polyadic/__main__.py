"""`python -m polyadic`, and `torchrun -m polyadic train ...` on several processes."""

from polyadic.cli import main

if __name__ == "__main__":
    main()
