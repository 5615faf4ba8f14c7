"""Relations in Parquet: one row per photo, with the columns of the JSON Lines record (`io.records`), nested.

    image      string    the photo, as it was named or listed
    size       list<double>    width and height, the frame of the boxes
    boxes      list<struct<box: list<double>, name, label: string, score: double, source: string>>
    relations  list<struct<subject: struct<box: int32, name: string>, predicate: string, object: struct<...>,
                           probability, score: double, parts: struct<detector, psi_c, psi_u, selected, repeat: double>>>
    given      struct<subject, predicate, object: string>    the names asked for, of an answer to a query
    note       string    why there are no relations
    error      string    why the photo could not be related; null for all others

pyarrow is an optional extra.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from polyadic.io.published import located
from polyadic.io.records import ImageRecord, to_relations
from polyadic.structures.images import path_ends
from polyadic.structures.relations import TERMS, Relations
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 256  # read or written at a time
_READ = ["image", "size", "boxes", "error"]
_READ += [f"relations.list.element.{name}" for name in ("subject", "predicate", "object", "score")]


def arrow() -> Any:
    """Import pyarrow with its Parquet module."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise PolyadicError("Parquet files need pyarrow: pip install 'polyadic[scale]'") from error
    return pa


@contextmanager
def complete(text: str) -> Iterator[None]:
    """Raise `text` with the reason, on one line, for whatever pyarrow raises while it reads a damaged file."""
    pa = arrow()
    try:
        yield
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:
        if isinstance(error, PolyadicError):
            raise
        raise PolyadicError(f"{text} ({' '.join(str(error).split()):.160})") from error


def relations_schema(about: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the columns; `about` is kept in the file."""
    pa = arrow()
    text, number = pa.string(), pa.float64()
    end = pa.struct([("box", pa.int32()), ("name", text)])
    parts = pa.struct([(name, number) for name in TERMS])
    relation = [("subject", end), ("predicate", text), ("object", end), ("probability", number), ("score", number)]
    box = [("box", pa.list_(number)), ("name", text), ("label", text), ("score", number), ("source", text)]
    columns = [
        pa.field("image", text, nullable=False),
        ("size", pa.list_(number)),
        ("boxes", pa.list_(pa.struct(box))),
        ("relations", pa.list_(pa.struct([*relation, ("parts", parts)]))),
        ("given", pa.struct([(name, text) for name in ("subject", "predicate", "object")])),
        ("note", text),
        ("error", text),
    ]
    return pa.schema(columns, metadata=dict(about or {}))


def plain_text(name: str) -> str:
    r"""Return a name as Unicode: bytes of file names that are none are escaped.

    >>> plain_text("caf\udce9.jpg")
    'caf\\udce9.jpg'
    """
    return name.encode("utf-8", "backslashreplace").decode()


def parquet_files(folder: Path) -> list[Path]:
    """List the Parquet files of a folder, in the order of their names; hidden ones and `_...` are not data."""
    return sorted(path for path in folder.glob("*.parquet") if path.name[0] not in "._")


def read_parquet(path: Path, vocabulary: Vocabulary, images: frozenset[str] = frozenset()) -> Iterator[Relations]:
    """Read the relations of one file, some rows at a time; photos with an error are left out.

    A photo gets the name in `images` that is the longest end of its path, if need be without suffix.
    """
    pa = arrow()
    with complete(f"{path} cannot be read: it is damaged or cut off"), pa.parquet.ParquetFile(path) as file:
        missing = [name for name in ("image", "boxes", "relations") if name not in file.schema_arrow.names]
        if missing:
            raise PolyadicError(f"{path}: no column {missing[0]!r}; expected a file of `polyadic predict --engine`")
        row = 0
        for batch in file.iter_batches(ROWS, columns=_READ):
            for record in batch.to_pylist():
                row += 1
                if record.pop("error", None) is None:
                    with located(f"{path.name}, row {row}"):
                        relations = _to_relations(record, vocabulary, images)
                    yield relations


def _to_relations(record: dict[str, Any], vocabulary: Vocabulary, images: frozenset[str]) -> Relations:
    try:
        checked = msgspec.convert(record, ImageRecord)
    except msgspec.ValidationError as error:
        raise PolyadicError(str(error)) from error
    name = next((end for end in path_ends(checked.image) if end in images), checked.image)
    return to_relations(checked, name, vocabulary)


def to_batch(records: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Convert records as `Relations.to_dict` gives them, or `{"image": ..., "error": ...}`."""
    empty: dict[str, Any] = {"boxes": [], "relations": []}
    return arrow().RecordBatch.from_pylist([{**empty, **record} for record in records], schema=schema)
