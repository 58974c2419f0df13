"""Room of shapefront."""

if not __name__.startswith("shapefront."):
    raise ImportError(f"'{__name__}' is a room of shapefront, not a package: import shapefront.{__name__}")
