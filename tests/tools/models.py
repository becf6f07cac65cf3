"""Generates models of two tables with sqlacodegen, uses them, and prints the result as JSON. Arguments: the database
URL, a folder.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

TABLES = (
    "CREATE TABLE model_authors (id INTEGER PRIMARY KEY, name VARCHAR(30) NOT NULL UNIQUE)",
    """\
CREATE TABLE model_books (id INTEGER PRIMARY KEY, author_id INTEGER NOT NULL REFERENCES model_authors (id),
  title VARCHAR(50), price DECIMAL(6, 2) DEFAULT 1, CHECK (price > 0))""",
    "CREATE INDEX model_books_title ON model_books (title)",
)


def main(url: str, folder: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in TABLES:
            connection.exec_driver_sql(statement)
    file = Path(folder, "generated_models.py")
    # The script in bin/ refers to the Python of the folder in which the environment was created.
    command = [sys.executable, "-m", "sqlacodegen", url, "--tables", "model_authors,model_books"]
    subprocess.run([*command, "--outfile", file], check=True, timeout=100)
    specification = importlib.util.spec_from_file_location("generated_models", file)
    models = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(models)
    with Session(engine) as session:
        session.add(models.ModelAuthors(id=1, name="ana"))
        session.flush()
        session.add(models.ModelBooks(id=2, author_id=1, title="one"))
        session.commit()
        book = session.scalars(sa.select(models.ModelBooks)).one()
        used = [book.author.name, str(book.price), [one.title for one in book.author.model_books]]
    print(json.dumps({"used": used, "text": file.read_text("utf-8")}))


main(*sys.argv[1:])
