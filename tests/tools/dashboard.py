"""A Streamlit dashboard that shows a table from the server, page by page. DASHBOARD_URL is the database URL."""

import os

import sqlalchemy as sa
import streamlit as st

PAGE_ROWS = 50

connection = st.connection("server", type="sql", url=os.environ["DASHBOARD_URL"])
names = sa.inspect(connection.engine).get_table_names()
name = st.selectbox("Table", sorted(name for name in names if name.startswith("dash_")))
columns = [column["name"] for column in sa.inspect(connection.engine).get_columns(name)]
order = st.selectbox("Order", columns)
page = st.number_input("Page", min_value=1, value=1)
table = sa.table(name, *map(sa.column, columns))
quoted = table.select().order_by(sa.column(order)).limit(PAGE_ROWS).offset((page - 1) * PAGE_ROWS)
text = str(quoted.compile(connection.engine, compile_kwargs={"literal_binds": True}))
st.dataframe(connection.query(text, ttl=0))
st.metric("Rows", connection.query(f"SELECT count(*) AS n FROM {name}", ttl=0)["n"][0])
first = columns[0]
with connection.session as session:
    least = session.execute(sa.text(f"SELECT min({first}) FROM {name} WHERE {first} > :n"), {"n": 5}).scalar()
st.metric("Least", least)
