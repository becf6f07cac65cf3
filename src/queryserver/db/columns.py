"""What all tables of the service database have in common."""

from sqlalchemy import Boolean, Column, DateTime, MetaData, func, text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def moment(name: str, *, nullable: bool = True, now: bool = False) -> Column[object]:
    """A point in time; `now`: that of the insert."""
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=func.now() if now else None)


def flag(name: str, *, default: bool) -> Column[bool]:
    """A boolean that is never null."""
    return Column(name, Boolean, nullable=False, server_default=text("true" if default else "false"))
