"""beartype as the shape checker of the tests, with Python's numeric tower: an int will do for a float."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
