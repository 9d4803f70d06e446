"""`python -m msdata_jax` is `msdata`."""

from msdata_jax.cli.main import main

if __name__ == "__main__":
    main()
