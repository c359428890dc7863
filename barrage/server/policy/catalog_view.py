"""The published tables as one caller sees them: those it may know of, with what it is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from barrage.errors import PermissionDeniedError, TableFailedError, TableNotFoundError
from barrage.server.policy.restricted_tables import restricted, restricted_table
from barrage.server.policy.rules import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from barrage.engine.tables.table import Table
    from barrage.server.policy.rules import Decision
    from barrage.server.runtime.catalog import Catalog, Publication

UNREADABLE = "a table that this one shows has failed"


def not_allowed(operation: Operation, table: str) -> PermissionDeniedError:
    """For whom there is the table, and not this."""
    return PermissionDeniedError(
        f"you may not {operation.value} table {table!r}; ask whoever keeps the server's policy"
    )


class CatalogView:
    """A catalog behind the rules for one caller. On the engine thread, or where queries are
    derived."""

    def __init__(
        self, catalog: Catalog, decide: Callable[[str], Decision], hash_key: bytes
    ) -> None:
        self._catalog = catalog
        self._decide = decide
        self._key = hash_key

    def __iter__(self) -> Iterator[Publication]:
        """Those the caller may read, by name, as they are: of a restricted one only the schema that
        :meth:`schema_of` gives may be told."""
        return (each for each in self._catalog if self._decide(each.name).may_read)

    def is_restricted(self, name: str) -> bool:
        """Whether the caller sees a part of the table only."""
        return self._decide(name).restriction is not None

    def schema_of(self, publication: Publication) -> pa.Schema:
        """What the caller sees as the schema. UnfitRuleError."""
        restriction = self._decide(publication.name).restriction
        schema = publication.table.schema
        if restriction is None:
            return schema
        return restricted(schema, publication.name, restriction, key=self._key).schema

    def listing(self) -> Mapping[str, int]:
        """As :meth:`Catalog.listing`."""
        listing = self._catalog.listing()
        return {name: serial for name, serial in listing.items() if self._decide(name).may_read}

    def live(self, name: str) -> Publication:
        """As :meth:`Catalog.live`, with the table the caller is shown. TableNotFoundError,
        TableFailedError, PermissionDeniedError."""
        decision = self._decide(name)
        if decision.is_known and not decision.may_read:
            raise not_allowed(Operation.READ, name)
        if not decision.may_read:
            # Whether it is there or not: the same words, the same hints.
            raise TableNotFoundError(name, known=self.listing())
        try:
            publication = self._catalog.live(name)
        except TableNotFoundError:
            raise TableNotFoundError(name, known=self.listing()) from None
        except TableFailedError:
            if decision.restriction is None:
                raise
            raise TableFailedError(f"table {name!r} has failed") from None
        if decision.restriction is None:
            is_read_only = publication.is_read_only or Operation.WRITE not in decision.allow
            return replace(publication, is_read_only=is_read_only)
        shown = self.shown(name, publication.table)
        return replace(publication, table=shown, kind="view", is_read_only=True)

    def shown(self, name: str, table: Table) -> Table:
        """What the caller is shown of ``table``, which is the one of that name or what it was.
        PermissionDeniedError, TableFailedError."""
        restriction = self._decide(name).restriction
        if restriction is None:
            return table
        return restricted_table(table, name, restriction, key=self._key)
